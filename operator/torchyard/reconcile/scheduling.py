"""What the plan asks of the gang scheduler of a job: its objects, whether pods may exist, and what is given back.

A scheduler that takes back what it gave makes the job pause like `spec.suspend` does: save, stop, delete the pods, and
only then give back.
"""

from msgspec.structs import replace

from torchyard.api.launch import fewest_nodes
from torchyard.api.reasons import NO_REASON, Reason
from torchyard.api.status import GangStatus, State, TrainingJobStatus, is_preempted
from torchyard.api.values import Time
from torchyard.reconcile.observed import Observed, View, admission, gang_of
from torchyard.schedulers.none import BY_OPERATOR, NOTHING
from torchyard.schedulers.protocol import Change, PodChanges

# Why a round was ended by request, and its pods deleted.
PAUSES = frozenset({Reason.SUSPENDED, Reason.PREEMPTED, Reason.OUTSIDE_PROFILE})
# Why one was ended by request, and the next one follows.
CHANGES = frozenset({Reason.RESIZING, Reason.NODE_LEAVING, Reason.REPLACING_STRAGGLER, Reason.PROGRAM_CHANGED})
ON_REQUEST = PAUSES | CHANGES


def pause_reason(view: View) -> Reason:
    """Return why the gang has to save and stop now: the spec, its profile or the scheduler asks for it; empty: none."""
    if view.job.spec.suspend:
        return Reason.SUSPENDED
    if view.profile.reason and (view.job.status.rendezvous.open or any(pod.alive for pod in view.pods)):
        return Reason.OUTSIDE_PROFILE
    return Reason.PREEMPTED if admission(view).pods == "stop" else NO_REASON


def pod_changes(view: View) -> PodChanges | None:
    """Return how pods that are created now differ; None: they do not."""
    changes = view.scheduling.scheduler.pods(gang_of(view))
    return None if changes == PodChanges() else changes


def changes(view: View, status: TrainingJobStatus) -> tuple[Change, ...]:
    """Return what to change in the scheduler's objects after this plan's status was written.

    Nothing is given back before the status says that the job is at rest, nor while a pod may still run.
    """
    return _changes(view, status) if retry_due(view, status) is None else ()


def retry_due(view: View, status: TrainingJobStatus) -> float | None:
    """Return when to try again what the cluster has refused; None: it has refused nothing, or nothing is to be changed.

    Without it the quota of a finished job would be held until the next resync: no further event of the job may come.
    """
    refusal = view.refusal
    if refusal is None or view.now >= refusal.until or not _changes(view, status):
        return None
    return refusal.until


def again(view: View, status: TrainingJobStatus) -> float | None:
    """Return when the scheduler of a gang that waits is to be asked again; None: it notices by itself when to act."""
    return None if status.state.at_rest else admission(view).again


def _changes(view: View, status: TrainingJobStatus) -> tuple[Change, ...]:
    request, gang = view.scheduling, gang_of(view)
    if request.missing or not request.known:
        return ()
    idle = view.job.status.state.at_rest and not gang.pods_live
    if status.state.terminal or view.job.spec.suspend or view.profile.reason:
        return request.scheduler.give_back(gang, "ended" if status.state.terminal else "suspended") if idle else ()
    if admission(view).pods == "stop":
        return request.scheduler.give_back(gang, "preempted") if idle else ()
    return request.scheduler.ask(gang)


def with_gang(seen: Observed, status: TrainingJobStatus) -> TrainingJobStatus:
    """Return the status with the scheduler of the gang, and its message; a machine has none.

    While it is not known, the status keeps its message.
    """
    view = seen.view
    if not view.scheduling.name or not view.scheduling.known:
        return status
    verdict = admission(view)
    admitted = verdict.admitted
    if admitted is None:
        placed, spec = sum(bool(pod.node) for pod in seen.active.values()), view.job.spec
        least = spec.nodes if spec.elastic is None else fewest_nodes(spec)
        admitted = verdict.pods == "create" and placed >= least
    if status.state.at_rest:
        admitted = False
    gang = GangStatus(enforced_by=view.scheduling.name, admitted=admitted, message=verdict.message or verdict.evidence)
    place = view.scheduling.queue_position
    if place is not None and verdict.pods == "keep" and not view.job.spec.suspend and not status.state.terminal:
        start = None if place.start is None else Time.of(place.start)
        gang = replace(gang, position=place.position, uncounted=place.uncounted, expected_start_time=start)
    return status if status.gang == gang else replace(status, gang=gang)


def decisive(gang: GangStatus | None) -> tuple[str, bool]:
    """Return what users wait for in `status.gang`; without a scheduler, the state of the job shows it as well."""
    if gang is None or gang.enforced_by in {BY_OPERATOR.name, NOTHING.name}:
        return gang.enforced_by if gang is not None else "", False
    return gang.enforced_by, gang.admitted


def enforced_by(status: TrainingJobStatus) -> str:
    """Return the choice of scheduler that is in force; empty: the job is new or at rest, and may get another one.

    A job without a choice that runs already was started by an operator that had none to make.
    """
    if status.state in {State.NEW, State.SUSPENDED} and not is_preempted(status):
        return ""
    if status.gang is None:
        return "" if status.state is State.QUEUED else BY_OPERATOR.name
    return status.gang.enforced_by
