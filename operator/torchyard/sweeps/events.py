"""The Kubernetes Events of a sweep, derived from its writes and from changes of its status (pure)."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Literal

from msgspec import Struct

from torchyard.api.values import figure
from torchyard.sweeps.decide import Action, Promote, Stop
from torchyard.sweeps.outcomes import Trial, outcomes_of, why_failed
from torchyard.sweeps.resource import TrainingSweep, trial_name
from torchyard.sweeps.status import SweepReason, TrainingSweepStatus

MAX_FAILED_AT_ONCE = 64


class EventReason(StrEnum):
    """Reasons that occur in events only."""

    STARTED = "Started"
    RESUMED = "Resumed"
    TRIAL_STOPPED = "TrialStopped"
    TRIAL_CONTINUED = "TrialContinued"
    TRIAL_FAILED = "TrialFailed"
    BEST_IMPROVED = "BestImproved"


class SweepEvent(Struct, frozen=True, kw_only=True):
    """One event of a sweep."""

    type: Literal["Normal", "Warning"] = "Normal"
    reason: EventReason | SweepReason
    message: str


def of_write(sweep: TrainingSweep, action: Action, trial: Trial) -> SweepEvent | None:
    """Return the event of a write that stopped a trial early, or continued it.

    Args:
        sweep: whose trial it is.
        action: that was carried out.
        trial: as it was before.
    """
    name, metric = trial_name(sweep.metadata.name, trial.record.number), sweep.spec.objective.metric
    if isinstance(action, Stop):
        last = outcomes_of(sweep.spec, trial)[-1]
        if last is None or last.kind != "stopped":
            return None  # the deadline is over, or too many failed
        if last.value is None:
            message = f"trial {name} is saved and stopped at {last.percent} %: {metric} is {last.non_finite}"
            return SweepEvent(reason=EventReason.TRIAL_STOPPED, message=message)
        unit = next(each for each in trial.record.units if each.number == last.unit)
        message = (
            f"trial {name} is saved and stopped at {last.percent} %: {metric} {figure(last.value)} is worse than "
            f"{figure(unit.thresholds[str(last.percent)])}"
        )
        return SweepEvent(reason=EventReason.TRIAL_STOPPED, message=message)
    if isinstance(action, Promote) and action.resumes:
        message = f"trial {name} continues from its checkpoint: it is among the best that were stopped where it was"
        return SweepEvent(reason=EventReason.TRIAL_CONTINUED, message=message)
    return None


def of_change(sweep: TrainingSweep, after: TrainingSweepStatus, trials: Sequence[Trial]) -> list[SweepEvent]:
    """Return the events of a new status.

    Args:
        sweep: with the status before.
        after: the new status.
        trials: that it describes.
    """
    before = sweep.status
    events = _failures(sweep, after.trials.failed - before.trials.failed, trials)
    best = after.best
    if best is not None and (before.best is None or before.best.trial != best.trial):
        metric = sweep.spec.objective.metric
        was = f"; before: {before.best.trial} with {figure(before.best.value)}" if before.best is not None else ""
        message = f"trial {best.trial} is the best so far: {metric} {figure(best.value)}{was}"
        events.append(SweepEvent(reason=EventReason.BEST_IMPROVED, message=message))
    if (before.state, before.reason) != (after.state, after.reason):
        events.append(_transition(sweep, after))
    return events


def _transition(sweep: TrainingSweep, after: TrainingSweepStatus) -> SweepEvent:
    reason = SweepReason(after.reason)
    if reason is not SweepReason.SEARCHING:
        stalled = any(each.type == "Stalled" and each.status == "True" for each in after.conditions)
        return SweepEvent(type="Warning" if stalled else "Normal", reason=reason, message=after.message)
    if sweep.status.state:
        return SweepEvent(reason=EventReason.RESUMED, message="the search continues")
    message = f"up to {after.trials.wanted} trials, {sweep.spec.parallel_trials} at a time"
    return SweepEvent(reason=EventReason.STARTED, message=message)


def _failures(sweep: TrainingSweep, new: int, trials: Sequence[Trial]) -> list[SweepEvent]:
    """Return an event for each of the trials that failed last."""
    failed = [trial for trial in trials if (last := outcomes_of(sweep.spec, trial)[-1]) and last.kind == "failed"]
    failed.sort(key=lambda trial: (trial.ended, trial.record.number))
    return [
        SweepEvent(
            type="Warning",
            reason=EventReason.TRIAL_FAILED,
            message=f"trial {trial_name(sweep.metadata.name, trial.record.number)}: {why_failed(sweep.spec, trial)}",
        )
        for trial in failed[len(failed) - min(max(new, 0), MAX_FAILED_AT_ONCE) :]
    ]
