"""Goodput: the attribution of every second since the job's creation.

The sum of the entries is the wall time that is attributed already. The time since then goes to the activity in the
persisted status; `plan` persists every change of it at once.
"""

import math

from msgspec.structs import replace

from torchyard.api.states import Phase, State
from torchyard.api.status import Goodput, TrainingJobStatus
from torchyard.reconcile.view import View


def advance(view: View, status: TrainingJobStatus) -> TrainingJobStatus:
    """Attribute the time since the last entry, and count the GPU seconds held in it."""
    before = view.job.status
    created = view.job.metadata.creation_timestamp or before.start_time
    if created is None or before.state.terminal:
        return status
    seconds = dict(before.goodput.seconds) if before.goodput is not None else {}
    due = view.now - created - math.fsum(seconds.values())
    if due <= 0:
        return status
    kind = _kind(view, before)
    seconds[kind] = seconds.get(kind, 0.0) + due
    held = sum(pod.phase == "Running" for pod in view.pods) * view.job.spec.gpus_per_node
    return replace(status, goodput=_goodput(seconds), gpu_seconds=round(status.gpu_seconds + due * held, 3))


def _kind(view: View, before: TrainingJobStatus) -> str:
    if before.state == State.PENDING and len(view.pods) >= view.job.spec.nodes and all(pod.node for pod in view.pods):
        return "pull"  # all pods are scheduled; nodes pull images and create containers
    if before.state == State.RUNNING and before.progress.stalled and not before.rendezvous.silent:
        return "stalled"
    if before.state.activity:
        return before.state.activity
    phase = Phase.of(before.progress.phase)
    return phase.activity if phase is not None else "productive"


def lose(status: TrainingJobStatus, end_step: int) -> TrainingJobStatus:
    """Move the time of steps beyond the newest checkpoint from `productive` to `lost`: they will be repeated."""
    if status.goodput is None or not status.attempts:
        return status
    attempt = status.attempts[-1]
    durable = status.checkpoint.step if status.checkpoint is not None else 0
    repeated = end_step - max(durable, attempt.start_step)
    made = end_step - attempt.start_step
    if repeated <= 0 or made <= 0:
        return status
    seconds = dict(status.goodput.seconds)
    productive = seconds.get("productive", 0.0)
    rate = status.throughput.steps_per_second
    lost = min(productive, repeated / rate) if rate else 0.0
    seconds |= {"productive": productive - lost, "lost": seconds.get("lost", 0.0) + lost}
    return replace(status, goodput=_goodput(seconds))


def _goodput(seconds: dict[str, float]) -> Goodput:
    total = math.fsum(seconds.values())
    percent = 100.0 * seconds.get("productive", 0.0) / total if total > 0 else 0.0
    return Goodput(
        percent=round(percent, 2),
        seconds={kind: round(value, 3) for kind, value in sorted(seconds.items()) if value > 0},
    )
