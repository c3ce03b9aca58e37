"""The decisions of a sweep: a function of its spec and of its trials, without clock, randomness or memory.

Decisions to train are numbered; each is a *unit*: a new trial, or a stopped one that goes on. Unit `u` uses the
outcomes of the units up to `u - lag` and nothing else, and waits until all of them have ended. Therefore it does not
matter which of the trials that run side by side is faster, nor how long a controller was away: the same sweep makes the
same decisions. The lag is twice the number of parallel trials, so that a slow trial does not keep a slot empty.

What a unit was decided with is stored on its trial by the same write that starts it.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from torchyard.api.values import plural
from torchyard.sweeps.outcomes import Outcome, Trial, Value, best_of, outcomes_of, reaches_target, rung_values
from torchyard.sweeps.ranking import Ranking
from torchyard.sweeps.resource import Unit
from torchyard.sweeps.space import wanted_trials
from torchyard.sweeps.spec import TrainingSweepSpec
from torchyard.sweeps.status import SweepReason


class Create(Struct, frozen=True, kw_only=True):
    """Create a trial; its parameters are those that the algorithm suggests after `history`."""

    number: int
    unit: Unit
    history: list[Outcome] = field(default_factory=list)


class Promote(Struct, frozen=True, kw_only=True):
    """Resume a stopped trial from its checkpoint."""

    number: int
    unit: Unit
    resumes: bool = True
    """Whether it trains: one that ran past its next rung, too, before it was stopped has an outcome already."""


class Stop(Struct, frozen=True, kw_only=True):
    """Save and stop a trial."""

    number: int
    values: dict[str, Value]


class Resume(Struct, frozen=True, kw_only=True):
    """Resume a trial that was suspended with its sweep."""

    number: int


class Finish(Struct, frozen=True, kw_only=True):
    """The sweep is over."""

    state: Literal["Succeeded", "Failed"]
    reason: SweepReason
    message: str


Action = Create | Promote | Stop | Resume | Finish


def decide(spec: TrainingSweepSpec, trials: Sequence[Trial], *, expired: bool = False) -> list[Action]:
    """Return the actions that are due. Actions that were carried out already are not returned again.

    Args:
        spec: of the sweep.
        trials: all that exist, in any order.
        expired: whether the deadline is over.
    """
    known = sorted(trials, key=lambda trial: trial.record.number)
    ended = {trial.record.number: outcomes_of(spec, trial) for trial in known}
    running = [trial for trial in known if not trial.at_rest]
    finish = _early_end(spec, ended, expired=expired)
    unwanted = [
        trial
        for trial in running
        if _last(ended[trial.record.number], "stopped")
        or (finish is not None and ended[trial.record.number][-1] is None)
    ]
    actions: list[Action] = [
        Stop(number=trial.record.number, values={str(key): value for key, value in rung_values(spec, trial).items()})
        for trial in unwanted
        if not trial.suspended
    ]
    if finish is not None:
        return actions if running else [finish]
    actions += [
        Resume(number=trial.record.number)
        for trial in known
        if trial.suspended and not trial.state.terminal and ended[trial.record.number][-1] is None
    ]
    busy = sum(ended[trial.record.number][-1] is None or not trial.at_rest for trial in known)
    stopped = {trial.record.number: trial for trial in known if not trial.state.terminal}
    planner = _Planner(spec, known, ended)
    while busy < spec.parallel_trials:
        action = planner.following()
        if isinstance(action, Finish):
            return actions if actions or busy else [action]
        if action is None:
            break
        if isinstance(action, Promote) and (trial := stopped.get(action.number)) is not None:
            action = replace(action, resumes=not _is_known(spec, trial, action.unit))
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
        self.newest: dict[int, int] = {}  # unit of each trial
        outcomes: dict[int, Outcome | None] = {}
        for trial in trials:
            padded = [*ended[trial.record.number], *[None] * len(trial.record.units)]
            for unit, outcome in zip(trial.record.units, padded, strict=False):
                outcomes[unit.number] = outcome
                self.newest[trial.record.number] = unit.number
        self.units = set(outcomes)
        self.complete = sum(outcome is not None and outcome.kind == "complete" for outcome in outcomes.values())
        # Of all units from the first on that have ended: no decision may know more.
        self.history: list[Outcome] = []
        while (ended_unit := outcomes.get(len(self.history))) is not None:
            self.history.append(ended_unit)
        self.rankings: dict[int, Ranking] = {}

    def following(self) -> Create | Promote | Finish | None:
        """Decide the next unit; None: it has to wait for others."""
        unit, number = _first_missing(self.units), _first_missing(self.numbers)
        most = wanted_trials(self.spec)
        lag = 1 if self.spec.parallel_trials == 1 else 2 * self.spec.parallel_trials
        for basis in range(max(0, unit - lag + 1), unit + 1):
            if basis > len(self.history):
                return None
            action: Create | Promote | None = self._promotion(unit, basis)
            if action is None and number < most:
                action = self._creation(unit, basis, number)
            if action is not None:
                self.units.add(unit)
                self.numbers.add(action.number)
                self.newest[action.number] = unit
                return action
        if not self.complete:
            what = "no trial trained to its end. `torchyard sweep show` says why."
            return Finish(state="Failed", reason=SweepReason.NO_TRIAL_COMPLETE, message=what)
        what = f"{plural(len(self.numbers), 'trial')}, {self.complete} of which trained to the end."
        return Finish(state="Succeeded", reason=SweepReason.COMPLETED, message=what)

    def _creation(self, unit: int, basis: int, number: int) -> Create:
        ranking = self._ranking(basis)
        thresholds = ranking.thresholds(number) if ranking is not None else {}
        decided = Unit(number=unit, basis=basis, thresholds=thresholds)
        return Create(number=number, unit=decided, history=self.history[:basis])

    def _promotion(self, unit: int, basis: int) -> Promote | None:
        ranking = self._ranking(basis)
        if ranking is None:
            return None
        for stopped in ranking.promotable():
            if self.newest[stopped.trial] >= basis:
                continue  # it goes on already
            thresholds = ranking.thresholds(stopped.trial, above=stopped.percent)
            return Promote(number=stopped.trial, unit=Unit(number=unit, basis=basis, thresholds=thresholds))
        return None

    def _ranking(self, basis: int) -> Ranking | None:
        """Return how the trials of the units below `basis` compare; None: the sweep stops none early."""
        if self.spec.early_stopping is None:
            return None
        if basis not in self.rankings:
            before = self.rankings.get(basis - 1)
            if before is None:
                found = Ranking(self.spec, self.spec.early_stopping)
                for outcome in self.history[:basis]:
                    found.add(outcome)
            else:
                found = before.with_outcome(self.history[basis - 1])
            self.rankings[basis] = found
        return self.rankings[basis]


def _first_missing(numbers: Collection[int]) -> int:
    """Return the smallest number from 0 on that is not among these."""
    return next(number for number in range(len(numbers) + 1) if number not in numbers)


def _is_known(spec: TrainingSweepSpec, trial: Trial, unit: Unit) -> bool:
    """Return whether the values that a trial has reported already decide how its next unit would end."""
    record = replace(trial.record, units=[*trial.record.units, unit])
    return outcomes_of(spec, replace(trial, record=record))[-1] is not None


def _last(outcomes: Sequence[Outcome | None], kind: str) -> bool:
    return outcomes[-1] is not None and outcomes[-1].kind == kind


def _early_end(
    spec: TrainingSweepSpec, ended: Mapping[int, Sequence[Outcome | None]], *, expired: bool
) -> Finish | None:
    """Return how a sweep ends for which no more trials are wanted; None: it goes on."""
    last = [outcomes[-1] for outcomes in ended.values()]
    best = best_of(spec, [outcome for outcome in last if outcome is not None])
    if best is not None and reaches_target(spec, best):
        what = f"trial {best.trial} reached objective.target {spec.objective.target:g} with {best.value:.6g}."
        return Finish(state="Succeeded", reason=SweepReason.TARGET_REACHED, message=what)
    failed = sum(_last(outcomes, "failed") for outcomes in ended.values())
    if failed > spec.max_failed:
        what = (
            f"{plural(failed, 'trial')} failed, more than maxFailed {spec.max_failed}. `torchyard sweep show` says why."
        )
        return Finish(state="Failed", reason=SweepReason.TOO_MANY_FAILED, message=what)
    if expired:
        what = f"the deadline of {spec.deadline} is over."
        ending: Literal["Succeeded", "Failed"] = "Succeeded" if best is not None else "Failed"
        return Finish(state=ending, reason=SweepReason.DEADLINE_EXCEEDED, message=what)
    return None
