"""`plan(view)`: from a sweep of a cluster and its trials to writes. Pure: no I/O, no clock, no randomness.

`decide` chooses what to do with trials; this module adds what a resource has: suspend, a status, a time to live, and
the problems that only a person can solve.
"""

import json
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from torchyard.api.formatting import clean
from torchyard.api.reasons import Kind
from torchyard.api.values import Time, figure, plural, since
from torchyard.sweeps.decide import Action, Finish, decide
from torchyard.sweeps.outcomes import Outcome, Trial, best_of, outcomes_of
from torchyard.sweeps.resource import TrainingSweep, trial_name
from torchyard.sweeps.space import wanted_trials
from torchyard.sweeps.spec import TrainingSweepSpec
from torchyard.sweeps.status import (
    MAX_MESSAGE,
    Best,
    SweepColumns,
    SweepCondition,
    SweepReason,
    SweepState,
    TrainingSweepStatus,
    TrialCounts,
)
from torchyard.sweeps.trials import fingerprint

SENTENCES = {
    SweepReason.SEARCHING: "trials run, or are about to",
    SweepReason.SUSPENDING: "trials save and stop, since spec.suspend is true",
    SweepReason.SUSPENDED: "spec.suspend is true; set it to false to go on",
}


class Problem(Struct, frozen=True):
    """A problem that stops a sweep, until a user acts or, where it does not stall, until it is over."""

    reason: SweepReason
    message: str

    @property
    def stalls(self) -> bool:
        """Whether waiting does not help."""
        return self.reason is not SweepReason.PREDECESSOR_STOPPING


class Suspend(Struct, frozen=True, kw_only=True):
    """Save and stop a trial together with its sweep; nothing is decided about it."""

    number: int


class SweepView(Struct, frozen=True, kw_only=True):
    """The input of the plan."""

    sweep: TrainingSweep
    trials: Sequence[Trial]
    now: float
    """Unix seconds."""
    problem: Problem | None = None
    """Of the trials as they are read, or of the last write."""


class SweepPlan(Struct, frozen=True, kw_only=True):
    """The output of the plan."""

    actions: Sequence[Action | Suspend] = ()
    status: TrainingSweepStatus
    due: float | None = None
    """Seconds until time alone changes the plan."""
    delete: bool = False
    """Whether the sweep's time to live is over."""


def plan(view: SweepView) -> SweepPlan:
    """Return the writes for a sweep. Once they have taken effect, an unchanged view has none."""
    spec, status, now = view.sweep.spec, view.sweep.status, view.now
    generation = view.sweep.metadata.generation
    if status.completion_time is not None and status.observed_generation == generation:
        return _finished(spec, status, now)
    expiry = view.sweep.expiry
    expired = expiry is not None and now >= expiry
    problem = _changed_spec(view) or view.problem
    if problem is not None and problem.reason is SweepReason.DAMAGED_TRIAL:  # the trials cannot all be read
        return SweepPlan(status=invalid(status, problem, generation=generation, now=now))
    if problem is not None and problem.reason is SweepReason.SPEC_CHANGED:
        return SweepPlan(status=_status(view, "Running", problem.reason, problem.message, stalled=True))
    due = expiry - now if expiry is not None and not expired else None
    if spec.suspend and not expired:
        running = [trial for trial in view.trials if not trial.at_rest]
        state: SweepState = "Suspending" if running else "Suspended"
        reason = SweepReason.SUSPENDING if running else SweepReason.SUSPENDED
        suspends = [Suspend(number=each.record.number) for each in running if not each.suspended]
        return SweepPlan(actions=suspends, status=_status(view, state, reason, SENTENCES[reason]), due=due)
    actions = decide(spec, view.trials, expired=expired)
    finish = next((each for each in actions if isinstance(each, Finish)), None)
    if finish is not None:
        after = _status(view, finish.state, finish.reason, finish.message)
        return replace(_finished(spec, after, now), status=after)
    if problem is not None:
        after = _status(view, "Running", problem.reason, problem.message, stalled=problem.stalls)
    else:
        after = _status(view, "Running", SweepReason.SEARCHING, _searching(view, actions))
    return SweepPlan(actions=actions, status=after, due=due)


def invalid(sweep_status: TrainingSweepStatus, problem: Problem, *, generation: int, now: float) -> TrainingSweepStatus:
    """Return the status of a sweep whose spec or trials cannot be read; what was found before stays."""
    status = replace(
        sweep_status,
        observed_generation=generation,
        state=sweep_status.state or "Running",
        reason=problem.reason,
        message=clean(problem.message)[:MAX_MESSAGE],
    )
    return _with_conditions(status, now, stalled=True)


def _searching(view: SweepView, actions: Sequence[Action | Suspend]) -> str:
    """Return what a running sweep waits for, if it waits for long."""
    sweep, spec = view.sweep, view.sweep.spec
    waiting = [
        trial
        for trial in sorted(view.trials, key=lambda trial: trial.record.number)
        if not trial.at_rest and trial.reason.kind is Kind.WAITING and trial.reason.announced
    ]
    if waiting:
        trial, others = waiting[0], len(waiting) - 1
        name = trial_name(sweep.metadata.name, trial.record.number)
        more = f"; {plural(others, 'other trial')} as well" if others else ""
        return (
            f"trial {name} waits: {trial.reason.sentence} ({trial.reason}); `torchyard explain {name}` says more{more}"
        )
    running = [trial for trial in view.trials if outcomes_of(spec, trial)[-1] is None]
    if running and not actions and len(running) < spec.parallel_trials:
        oldest = min(running, key=lambda trial: trial.record.units[-1].number)
        name = trial_name(sweep.metadata.name, oldest.record.number)
        return f"the next trial waits for the result of {name}, or all have begun"
    return SENTENCES[SweepReason.SEARCHING]


def _finished(spec: TrainingSweepSpec, status: TrainingSweepStatus, now: float) -> SweepPlan:
    if spec.ttl_after_finished is None:
        return SweepPlan(status=status)
    left = since(status.completion_time, now) + spec.ttl_after_finished - now
    return SweepPlan(status=status, delete=left <= 0, due=left if left > 0 else None)


def _changed_spec(view: SweepView) -> Problem | None:
    """Return the problem of a sweep whose template was changed in fields that the API server cannot compare."""
    now = fingerprint(view.sweep.spec) if view.trials else ""
    changed = [trial for trial in view.trials if trial.record.spec not in {"", now}]
    if not changed:
        return None
    name = trial_name(view.sweep.metadata.name, changed[0].record.number)
    what = (
        f"spec differs from what trial {name} was made from, in more than may change. Restore it, or create a sweep "
        "of another name."
    )
    return Problem(SweepReason.SPEC_CHANGED, what)


def _status(
    view: SweepView, state: SweepState, reason: SweepReason, message: str, *, stalled: bool = False
) -> TrainingSweepStatus:
    spec, before = view.sweep.spec, view.sweep.status
    ends = {trial.record.number: outcomes_of(spec, trial)[-1] for trial in view.trials}
    kinds = [outcome.kind if outcome is not None else "" for outcome in ends.values()]
    wanted = wanted_trials(spec)
    counts = TrialCounts(
        wanted=wanted,
        created=len(kinds),
        running=sum(not trial.at_rest and ends[trial.record.number] is None for trial in view.trials),
        complete=kinds.count("complete"),
        stopped=kinds.count("stopped"),
        failed=kinds.count("failed"),
    )
    best = _best(view, [outcome for outcome in ends.values() if outcome is not None])
    over = state in {"Succeeded", "Failed"}
    status = replace(
        before,
        observed_generation=view.sweep.metadata.generation,
        state=state,
        reason=reason,
        message=clean(message)[:MAX_MESSAGE],
        trials=counts,
        best=best,
        columns=SweepColumns(
            trials=f"{counts.complete + counts.stopped + counts.failed}/{wanted}",
            best=figure(best.value) if best is not None else "",
        ),
        completion_time=(before.completion_time or Time.of(view.now)) if over else None,
    )
    return _with_conditions(status, view.now, stalled=stalled or state == "Failed")


def _best(view: SweepView, ended: Sequence[Outcome]) -> Best | None:
    best = best_of(view.sweep.spec, ended)
    if best is None or best.value is None:
        return None
    parameters = next(trial.record.parameters for trial in view.trials if trial.record.number == best.trial)
    return Best(
        trial=trial_name(view.sweep.metadata.name, best.trial),
        value=best.value,
        parameters={path: clean(json.dumps(value, ensure_ascii=False)) for path, value in parameters.items()},
    )


def _with_conditions(status: TrainingSweepStatus, now: float, *, stalled: bool) -> TrainingSweepStatus:
    """Return the status with its conditions, which follow kstatus as those of jobs do."""
    changes = status.state in {"", "Suspending"} and not stalled
    held = {
        "Ready": not stalled and not changes,
        "Reconciling": changes,
        "Stalled": stalled,
        "Complete": status.state == "Succeeded",
        "Failed": status.state == "Failed",
    }
    earlier = {each.type: each for each in status.conditions}
    return replace(status, conditions=[_condition(status, earlier.get(kind), kind, held[kind], now) for kind in held])


def _condition(
    status: TrainingSweepStatus, before: SweepCondition | None, kind: str, holds: bool, now: float
) -> SweepCondition:
    same = before is not None and before.status == str(holds)
    return SweepCondition(
        type=kind,
        status="True" if holds else "False",
        reason=status.reason,
        message=status.message if holds or kind == "Ready" else "",
        last_transition_time=before.last_transition_time if before is not None and same else Time.of(now),
        observed_generation=status.observed_generation,
    )
