"""Kueue's priority boost: of several jobs of one priority, a preemption takes the one that loses the least training.

Kueue adds the annotation `kueue.x-k8s.io/priority-boost` of a Workload to its priority (KEP-7990, feature gate
PriorityBoost). It is never above 0 here. A waiting Workload has the lowest boost of all: otherwise the policy
`LowerPriority` would let it preempt a running one of the same priority that has just saved, and that one would preempt
it in turn.
"""

from torchyard.api.resource import GROUP as OURS
from torchyard.api.status import TrainingJobStatus
from torchyard.api.values import Time, since
from torchyard.schedulers.protocol import Change, Gang, GangObject, PatchObject

BOOST = "kueue.x-k8s.io/priority-boost"
BOOST_TIME = f"{OURS}/priority-boost-time"  # when the boost was last changed
LOWEST = -4
# Seconds of training that a preemption would lose, and the boost below them; 0 above the last one.
LEVELS = ((60.0, LOWEST), (300.0, -3), (900.0, -2), (3600.0, -1))
MIN_SECONDS = 60.0  # between two patches


def of_new_workload() -> dict[str, str]:
    """Return the annotations of a Workload that is created."""
    return {BOOST: str(LOWEST)}


def boost(status: TrainingJobStatus, now: float, *, admitted: bool) -> int:
    """Return the boost by the training that a preemption would lose: since the newest checkpoint or start of a round.

    Args:
        status: of the job.
        now: unix seconds.
        admitted: whether the Workload has quota.
    """
    newest = status.attempts[-1].start_time if status.attempts else None
    saved = status.checkpoint.time if status.checkpoint is not None else None
    at_risk = now - max(since(newest, now), since(saved, 0.0))
    if not admitted:
        return LOWEST
    return next((level for seconds, level in LEVELS if at_risk < seconds), 0)


def changes(gang: Gang, there: GangObject) -> tuple[Change, ...]:
    """Return the patch of the Workload if its boost is outdated and was not changed within the last minute."""
    admitted = there.condition("Admitted").holds and not there.condition("Evicted").holds
    annotations = there.at("metadata", "annotations") or {}
    now = boost(gang.job.status, gang.now, admitted=admitted)
    if there.deleting or annotations.get(BOOST) == str(now):
        return ()
    if abs(gang.now - _changed(annotations.get(BOOST_TIME))) < MIN_SECONDS:
        return ()
    values = {BOOST: str(now), BOOST_TIME: str(Time.of(gang.now))}
    patch = {"metadata": {"annotations": values}}
    why = "what a preemption would lose has changed"
    return (PatchObject(kind=there.kind, name=there.name, uid=there.uid, patch=patch, why=why),)


def _changed(text: object) -> float:
    """Return when the boost was last changed, unix seconds; a text that is no time counts as long ago."""
    try:
        return Time.parse(str(text))
    except ValueError:
        return 0.0
