"""Time-outs before and around rounds: each gives what is overdue (or an empty text) and when it will be."""

from torchyard.api.durations import seconds
from torchyard.api.status import TrainingJobStatus
from torchyard.engine.gang import seats
from torchyard.engine.moments import moment
from torchyard.engine.rounds import Barrier
from torchyard.engine.view import View


def deadline(view: View, status: TrainingJobStatus) -> float | None:
    """When `spec.activeDeadline` ends the job; its clock starts with the first round and never stops."""
    begun = moment(status.start_time)
    limit = view.job.spec.active_deadline
    return begun + seconds(limit) if begun is not None and limit is not None else None


def pending(view: View, status: TrainingJobStatus) -> tuple[str, float | None]:
    """Pods that wait to be placed for longer than `spec.health.pendingTimeout`."""
    limit = view.job.spec.health.pending_timeout
    waiting = [pod for pod in seats(view, status).values() if pod.phase == "Pending"]
    if limit is None or not waiting:
        return "", None
    oldest = min(waiting, key=lambda pod: (pod.created, pod.index))
    due = oldest.created + seconds(limit)
    why = f"pod {oldest.name} waits for {limit}" + (f", {oldest.reason}: {oldest.message}" if oldest.reason else "")
    return (why, None) if view.now >= due else ("", due)


def start(view: View, gate: Barrier) -> tuple[str, float | None]:
    """Pods that all run and whose agents do not call in, for longer than somebody has been listening."""
    pods = [pod for pod in view.pods if pod.alive and not pod.deleting]
    if len(pods) < view.job.spec.nodes or any(pod.phase != "Running" for pod in pods) or not gate.waiting:
        return "", None
    silent = [pod.name for pod in pods if pod.uid not in view.agents]
    if not silent:
        return "", None
    begun = max([view.since, *(pod.started or pod.created for pod in pods)])
    due = begun + seconds(view.job.spec.health.start_timeout)
    return (f"no agent in {', '.join(silent[:3])}", None) if view.now >= due else ("", due)
