"""The reason for which a job waits for its next round, announced once."""

from msgspec.structs import replace

from torchyard.api.reasons import Reason
from torchyard.api.states import State
from torchyard.api.status import TrainingJobStatus, with_reason
from torchyard.engine.actions import EmitEvent
from torchyard.engine.gang import FUTILE, active_pods, pause_end
from torchyard.engine.rounds import Barrier
from torchyard.engine.view import Pod, View

# Twice as long as an overloaded API server takes to answer; a hanging webhook takes longer.
UNANSWERED_SECONDS = 20.0


def waiting_events(before: TrainingJobStatus, now: TrainingJobStatus) -> tuple[EmitEvent, ...]:
    """Return an event if the reason for waiting is new; the status keeps the reason until it is resolved."""
    reason = Reason.of(now.reason)
    if now.reason == before.reason or reason is None or not reason.announced:
        return ()
    if now.reason == FUTILE and now.rendezvous.releases > 0:
        return ()  # announced before the first release of its pods, and unchanged
    return (EmitEvent(type="Warning", reason=now.reason, message=now.message),)


def with_pending_reason(
    view: View, status: TrainingJobStatus, gate: Barrier, silent: str, *, backed_off: bool
) -> TrainingJobStatus:
    """Return the status with what the barrier waits for: a reason of the cluster, a failure, or missing members."""
    if pause_end(view, status) is not None:
        return status
    held = active_pods(view, status)
    recovering = status.state == State.RECOVERING
    state = State.RECOVERING if recovering else State.PENDING
    if view.refusal is not None:
        status = _with_delay(status, delayed=recovering)
        return with_reason(status, state, view.refusal.reason, view.refusal.message)
    blocked = next(
        (pod for pod in held.values() if pod.phase == "Pending" and pod.reason not in {"", Reason.STARTING}), None
    )
    if blocked is not None:
        known = Reason.of(blocked.reason)
        status = _with_delay(status, delayed=recovering)
        why = blocked.message if known is not None else f"{blocked.reason}: {blocked.message}"
        return with_reason(status, state, known or Reason.WAITING_FOR_PODS, why)
    lack = [each for each in gate.waiting if each] or _stopping(view, held)
    evidence = f"{len(gate.ready)} of {view.job.spec.nodes} ready" + (f"; {'; '.join(lack[:3])}" if lack else "")
    running = all(index in held and held[index].phase == "Running" for index in range(view.job.spec.nodes))
    if recovering and running and silent:
        return with_reason(_with_delay(status, delayed=True), state, Reason.AGENT_SILENT, silent)
    if recovering:
        # The cause of the failure is shown until something else delays the gang; that is resolved now.
        after = with_reason(_with_delay(status, delayed=False), state, Reason.RECOVERING, evidence)
        return after if status.rendezvous.delayed else status
    if backed_off:
        return with_reason(status, State.PENDING, Reason.BACKING_OFF, evidence)
    if running:
        return with_reason(
            status, State.STARTING, Reason.AGENT_SILENT if silent else Reason.WAITING_FOR_AGENTS, silent or evidence
        )
    mute = _unanswered(view, status)
    evidence = f"no pod for more than {UNANSWERED_SECONDS:g} s, and no reason why" if mute else evidence
    return with_reason(status, State.PENDING, Reason.PODS_NOT_CREATED if mute else Reason.WAITING_FOR_PODS, evidence)


def _with_delay(status: TrainingJobStatus, *, delayed: bool) -> TrainingJobStatus:
    if status.rendezvous.delayed == delayed:
        return status
    return replace(status, rendezvous=replace(status.rendezvous, delayed=delayed))


def _unanswered(view: View, status: TrainingJobStatus) -> bool:
    """Return whether the request to create the pods of a new job has not been answered for some time."""
    first = status.round == 0 and status.rendezvous.releases == 0
    return first and not view.pods and view.now - view.since >= UNANSWERED_SECONDS


def _stopping(view: View, held: dict[int, Pod]) -> list[str]:
    """Return former pods that have to be gone before their indices get new pods."""
    former = sorted(pod.name for pod in view.pods if pod.alive and pod.index not in held)
    return [f"{name} is still stopping" for name in former]
