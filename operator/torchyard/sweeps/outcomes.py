"""The outcomes of trials: how each unit of training ended, according to the reported values (pure)."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct, field

from torchyard.api.reasons import NO_REASON, Reason
from torchyard.api.spec_workload import Milestones
from torchyard.api.status import NonFinite, State
from torchyard.sweeps.resource import TrialRecord, Unit
from torchyard.sweeps.spec import EarlyStopping, TrainingSweepSpec

Kind = Literal["complete", "stopped", "failed"]
Value = float | NonFinite
"""A finite number, or the name of what a metric is instead."""
NOT_FINITE = "NotFinite"
"""Reason of a trial that trained to its end and whose objective is no number then."""


class Trial(Struct, frozen=True, kw_only=True):
    """A trial as a controller sees it: the record of the sweep on its job, and the job's status."""

    record: TrialRecord
    state: State = State.NEW
    """Of the job."""
    suspended: bool = False
    """Whether the job's spec says so."""
    metrics: Mapping[str, Value] = field(default_factory=dict)
    """Newest values of the job."""
    reason: Reason = NO_REASON
    """Of the job's status."""
    message: str = ""
    """Of the job's status."""
    ended: float = 0.0
    """Unix seconds at which the job was over; 0: it is not."""

    @property
    def at_rest(self) -> bool:
        """Whether no process of the job is left, nor about to start: a status says later what the spec asks for."""
        return self.state.terminal or bool(self.record.rejected) or (self.state.at_rest and self.suspended)


class Outcome(Struct, frozen=True, kw_only=True):
    """How one unit of a trial ended."""

    unit: int
    trial: int
    kind: Kind
    value: float | None = None
    """Of the objective: the last one, or that of the rung where the trial was stopped."""
    non_finite: NonFinite | None = None
    """What the objective is instead of a number, at its end or at the rung where the trial was stopped."""
    percent: int = 100
    values: Mapping[int, Value] = field(default_factory=dict)
    """By percent, up to the rung where the trial was stopped. A trial is stopped where one is not finite."""


def rungs(stopping: EarlyStopping | None) -> list[int]:
    """Return the rungs of a trial: the percentages of its steps at which it is evaluated."""
    found: list[int] = []
    percent = stopping.first_percent if stopping is not None else 100
    while percent < 100 and stopping is not None:
        found.append(percent)
        percent *= stopping.factor
    return found


def milestones_of(spec: TrainingSweepSpec) -> Milestones | None:
    """Return the values that a trial reports at its rungs; None: it has none."""
    percents = rungs(spec.early_stopping)
    return Milestones(metric=spec.objective.metric, percents=percents) if percents else None


def rung_values(spec: TrainingSweepSpec, trial: Trial) -> dict[int, Value]:
    """Return the values of a trial by percent: as they were stored, else as its job reports them."""
    found: dict[int, Value] = {}
    milestones = milestones_of(spec)
    for percent, name in milestones.names.items() if milestones is not None else ():
        value = trial.record.values.get(str(percent), trial.metrics.get(name))
        if value is not None:
            found[percent] = value
    return found


def outcomes_of(spec: TrainingSweepSpec, trial: Trial) -> list[Outcome | None]:
    """Return the outcome of each unit of a trial, in order; the last one may be None: it trains.

    Values of rungs decide, not the moment at which the controller looked: a trial that ran past the rung where it was
    to be stopped, because no controller was there, was stopped at that rung all the same.
    """
    if trial.record.rejected:
        first = trial.record.units[0].number
        return [Outcome(unit=first, trial=trial.record.number, kind="failed", percent=0)]
    values = rung_values(spec, trial)
    found: list[Outcome | None] = []
    past = 0
    for unit in trial.record.units:
        stop = next((percent for percent in values if percent > past and _stops(spec, unit, percent, values)), None)
        if stop is None:
            found.append(_end(spec, trial, unit, values))
            break
        kept = {percent: value for percent, value in values.items() if percent <= stop}
        found.append(
            Outcome(
                unit=unit.number,
                trial=trial.record.number,
                kind="stopped",
                **_value(values[stop]),
                percent=stop,
                values=kept,
            )
        )
        past = stop
    return found


def why_failed(spec: TrainingSweepSpec, trial: Trial) -> str:
    """Return why a trial failed, in one sentence without a full stop."""
    if trial.record.rejected:
        return f"its parameters do not form a valid job: {trial.record.rejected}"
    if trial.state is State.SUCCEEDED:
        metric = spec.objective.metric
        if isinstance(value := trial.metrics.get(metric), str):
            return f"{metric} is {value} at its end ({NOT_FINITE})"
        return f"it trained to its end without a value of {metric}"
    return trial.message.rstrip(".") or "its job failed"


def better(spec: TrainingSweepSpec, one: float, other: float) -> bool:
    """Return whether a value is better than another one."""
    return one > other if spec.objective.goal == "maximize" else one < other


def best_of(spec: TrainingSweepSpec, outcomes: Sequence[Outcome]) -> Outcome | None:
    """Return the best outcome of the trials that trained to their end; of equal ones the earliest trial's."""
    complete = [each for each in outcomes if each.kind == "complete" and each.value is not None]
    best: Outcome | None = None
    for each in sorted(complete, key=lambda outcome: outcome.trial):
        assert each.value is not None
        if best is None or best.value is None or better(spec, each.value, best.value):
            best = each
    return best


def reaches_target(spec: TrainingSweepSpec, outcome: Outcome) -> bool:
    """Return whether an outcome is as good as the sweep's target; without target or value it is not."""
    target = spec.objective.target
    return target is not None and outcome.value is not None and not better(spec, target, outcome.value)


def _stops(spec: TrainingSweepSpec, unit: Unit, percent: int, values: Mapping[int, Value]) -> bool:
    """Return whether a unit is stopped at a rung: by its threshold, or as Optuna prunes a trial that reports NaN."""
    value, threshold = values[percent], unit.thresholds.get(str(percent))
    return isinstance(value, str) or (threshold is not None and better(spec, threshold, value))


def _value(value: Value | None) -> dict[str, Any]:
    """Return `value` and `non_finite` of an outcome."""
    return {"non_finite": value} if isinstance(value, str) else {"value": value}


def _end(spec: TrainingSweepSpec, trial: Trial, unit: Unit, values: Mapping[int, Value]) -> Outcome | None:
    if not trial.state.terminal:
        return None
    value = trial.metrics.get(spec.objective.metric) if trial.state is State.SUCCEEDED else None
    kind: Kind = "complete" if isinstance(value, float | int) else "failed"
    return Outcome(unit=unit.number, trial=trial.record.number, kind=kind, **_value(value), values=values)
