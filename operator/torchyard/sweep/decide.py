"""The decisions of a sweep: a function of its spec and of its trials, without clock, randomness or memory.

Decisions to train are numbered; each is a *unit*: a new trial, or a stopped one that goes on. Unit `u` uses the
outcomes of the units up to `u - lag` and nothing else, and waits until all of them have ended. Therefore it does not
matter which of the trials that run side by side is faster, nor how long a controller was away: the same sweep makes the
same decisions. The lag is twice the number of parallel trials, so that a slow trial does not keep a slot empty.

What a unit was decided with is stored on its trial by the same write that starts it.
"""

from collections.abc import Sequence
from statistics import median
from typing import Literal

from msgspec import Struct, field

from torchyard.sweep.outcomes import Outcome, Trial, best_first, better, outcomes_of, rung_values, rungs
from torchyard.sweep.resource import Unit
from torchyard.sweep.space import grid_size
from torchyard.sweep.spec import EarlyStopping, TrainingSweepSpec
from torchyard.sweep.status import SweepReason


class Create(Struct, frozen=True, kw_only=True):
    """Create a trial; its parameters are those that the algorithm suggests after `history`."""

    number: int
    unit: Unit
    history: list[Outcome] = field(default_factory=list)


class Promote(Struct, frozen=True, kw_only=True):
    """Resume a stopped trial from its checkpoint."""

    number: int
    unit: Unit


class Stop(Struct, frozen=True, kw_only=True):
    """Save and stop a trial."""

    number: int
    values: dict[str, float]


class Resume(Struct, frozen=True, kw_only=True):
    """Go on with a trial that was suspended with its sweep."""

    number: int


class Finish(Struct, frozen=True, kw_only=True):
    """The sweep is over."""

    state: Literal["Succeeded", "Failed"]
    reason: SweepReason
    message: str


Action = Create | Promote | Stop | Resume | Finish


def decide(spec: TrainingSweepSpec, trials: Sequence[Trial], *, expired: bool = False) -> list[Action]:
    """Return what to do now. Repeating a decision that was carried out already is not asked for.

    Args:
        spec: of the sweep.
        trials: all that exist, in any order.
        expired: whether the deadline is over.
    """
    known = sorted(trials, key=lambda trial: trial.record.number)
    ended = {trial.record.number: outcomes_of(spec, trial) for trial in known}
    actions: list[Action] = [
        Stop(number=trial.record.number, values={str(key): value for key, value in rung_values(spec, trial).items()})
        for trial in known
        if _is_stopped(ended[trial.record.number]) and not trial.suspended and not trial.at_rest
    ]
    failed = sum(_last(ended[number], "failed") for number in ended)
    if expired or failed > spec.max_failed:
        return [*actions, *_give_up(spec, known, ended, failed)]
    actions += [
        Resume(number=trial.record.number)
        for trial in known
        if trial.suspended and trial.state not in {"Succeeded", "Failed"} and ended[trial.record.number][-1] is None
    ]
    busy = sum(ended[trial.record.number][-1] is None or not trial.at_rest for trial in known)
    planner = _Planner(spec, known, ended)
    while busy < spec.parallel_trials:
        action = planner.following()
        if isinstance(action, Finish):
            return actions if actions or busy else [action]
        if action is None:
            break
        actions.append(action)
        busy += 1
    return actions


class _Planner:
    """The units of a sweep in order; units that are decided in one pass count as running in the next."""

    def __init__(
        self, spec: TrainingSweepSpec, trials: Sequence[Trial], ended: dict[int, list[Outcome | None]]
    ) -> None:
        self.spec = spec
        self.numbers = {trial.record.number for trial in trials}
        self.outcomes: dict[int, Outcome | None] = {}
        self.trial_of: dict[int, int] = {}
        for trial in trials:
            padded = [*ended[trial.record.number], *[None] * len(trial.record.units)]
            for unit, outcome in zip(trial.record.units, padded, strict=False):
                self.outcomes[unit.number] = outcome
                self.trial_of[unit.number] = trial.record.number

    def following(self) -> Create | Promote | Finish | None:
        """Decide the next unit; None: it has to wait for others."""
        unit = next(number for number in range(len(self.outcomes) + 1) if number not in self.outcomes)
        lag = 1 if self.spec.parallel_trials == 1 else 2 * self.spec.parallel_trials
        for basis in range(max(0, unit - lag + 1), unit + 1):
            history = self._history(basis)
            if history is None:
                return None
            action = self._promotion(unit, basis, history) or self._creation(unit, basis, history)
            if action is not None:
                self.outcomes[unit] = None
                self.trial_of[unit] = action.number
                self.numbers.add(action.number)
                return action
        complete = sum(outcome is not None and outcome.kind == "complete" for outcome in self.outcomes.values())
        if not complete:
            what = "no trial trained to its end. `torchyard logs TRIAL` shows why."
            return Finish(state="Failed", reason=SweepReason.NO_TRIAL_COMPLETE, message=what)
        what = f"{len(self.numbers)} trials, {complete} of them trained to their end."
        return Finish(state="Succeeded", reason=SweepReason.COMPLETED, message=what)

    def _history(self, basis: int) -> list[Outcome] | None:
        """Return the outcomes of the units below `basis`; None: one of them has not ended."""
        found = [self.outcomes.get(number) for number in range(basis)]
        known = [outcome for outcome in found if outcome is not None]
        return known if len(known) == len(found) else None

    def _creation(self, unit: int, basis: int, history: list[Outcome]) -> Create | None:
        most = self.spec.max_trials
        if self.spec.algorithm.name == "grid":
            most = min(most, grid_size(self.spec))
        number = next(number for number in range(len(self.numbers) + 1) if number not in self.numbers)
        if number >= most:
            return None
        thresholds = thresholds_of(self.spec, number, history)
        return Create(number=number, unit=Unit(number=unit, basis=basis, thresholds=thresholds), history=history)

    def _promotion(self, unit: int, basis: int, history: list[Outcome]) -> Promote | None:
        stopping = self.spec.early_stopping
        if stopping is None or stopping.name == "median":
            return None
        latest = {outcome.trial: outcome for outcome in history}
        later = {trial for number, trial in self.trial_of.items() if number >= basis}
        for percent in reversed(rungs(stopping)):
            for bracket in sorted({_bracket(stopping, number) for number in latest}):
                peers = [each for each in latest.values() if _bracket(stopping, each.trial) == bracket]
                reached = sorted(
                    (each for each in peers if percent in each.values),
                    key=lambda each: (_rank(self.spec, each.values[percent]), each.trial),
                )
                for each in reached[: len(reached) // stopping.factor]:
                    if each.kind == "stopped" and each.percent == percent and each.trial not in later:
                        thresholds = {
                            name: value
                            for name, value in thresholds_of(self.spec, each.trial, history).items()
                            if int(name) > percent
                        }
                        return Promote(number=each.trial, unit=Unit(number=unit, basis=basis, thresholds=thresholds))
        return None


def thresholds_of(spec: TrainingSweepSpec, number: int, history: Sequence[Outcome]) -> dict[str, float]:
    """Return the value by percent below which a new unit of a trial is stopped.

    asha (Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning"): of the values at a rung, its own
    among them, the best of `factor` goes on. hyperband: the same among the trials of a bracket, whose first rung
    differs from those of the others. median (Golovin et al. 2017, "Google Vizier"): those that are at least as good as
    the median do.
    """
    stopping = spec.early_stopping
    if stopping is None:
        return {}
    bracket = _bracket(stopping, number)
    latest = {outcome.trial: outcome for outcome in history if outcome.trial != number}
    peers = [outcome for outcome in latest.values() if _bracket(stopping, outcome.trial) == bracket]
    found: dict[str, float] = {}
    for percent in rungs(stopping)[bracket:]:
        values = best_first(spec, [outcome.values[percent] for outcome in peers if percent in outcome.values])
        if stopping.name == "median":
            if len(values) >= stopping.min_trials:
                found[str(percent)] = median(values)
        elif values:
            found[str(percent)] = values[max(1, (len(values) + 1) // stopping.factor) - 1]
    return found


def _bracket(stopping: EarlyStopping, number: int) -> int:
    """Return the place of a trial's first rung."""
    return number % (len(rungs(stopping)) + 1) if stopping.name == "hyperband" else 0


def _rank(spec: TrainingSweepSpec, value: float) -> float:
    return -value if better(spec, 1.0, 0.0) else value


def _is_stopped(outcomes: Sequence[Outcome | None]) -> bool:
    return _last(outcomes, "stopped")


def _last(outcomes: Sequence[Outcome | None], kind: str) -> bool:
    return outcomes[-1] is not None and outcomes[-1].kind == kind


def _give_up(
    spec: TrainingSweepSpec, trials: Sequence[Trial], ended: dict[int, list[Outcome | None]], failed: int
) -> list[Action]:
    """Stop all trials, then end the sweep."""
    running = [trial for trial in trials if not trial.at_rest]
    stops: list[Action] = [
        Stop(number=trial.record.number, values={str(key): value for key, value in rung_values(spec, trial).items()})
        for trial in running
        if not trial.suspended and ended[trial.record.number][-1] is None
    ]
    if running:
        return stops
    if failed > spec.max_failed:
        what = f"{failed} trials failed, more than maxFailed {spec.max_failed}. `torchyard logs TRIAL` shows why."
        return [Finish(state="Failed", reason=SweepReason.TOO_MANY_FAILED, message=what)]
    complete = any(_last(outcomes, "complete") for outcomes in ended.values())
    ending: Literal["Succeeded", "Failed"] = "Succeeded" if complete else "Failed"
    what = f"the deadline of {spec.deadline} is over."
    return [Finish(state=ending, reason=SweepReason.DEADLINE_EXCEEDED, message=what)]
