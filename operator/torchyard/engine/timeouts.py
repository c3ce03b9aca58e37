"""Timeouts before and during rounds: each function returns a sentence if it has expired, and when it will."""

from torchyard.api.durations import seconds
from torchyard.api.reasons import Reason
from torchyard.api.status import TrainingJobStatus
from torchyard.engine.gang import active_pods
from torchyard.engine.rounds import Barrier
from torchyard.engine.timestamps import moment, since
from torchyard.engine.view import Pod, View

SILENT_AGENT_SECONDS = 30.0
SILENT_WORKERS_SECONDS = 60.0


def deadline(view: View, status: TrainingJobStatus) -> float | None:
    """Return when `spec.activeDeadline` ends the job; it counts from the first round, without pauses."""
    begun = moment(status.start_time)
    limit = view.job.spec.active_deadline
    return begun + seconds(limit) if begun is not None and limit is not None else None


def pending(view: View, status: TrainingJobStatus) -> tuple[str, float | None]:
    """Return pods that have waited longer than `spec.health.pendingTimeout`.

    Only the time that this process has observed counts, since the clock of the API server may differ. A new process
    starts to count again, which is better than failing every job that waits.
    """
    limit = view.job.spec.health.pending_timeout
    waiting = [pod for pod in active_pods(view, status).values() if pod.phase == "Pending"]
    if limit is None:
        return "", None
    if view.refusal is not None:
        due = view.refusal.since + seconds(limit)
        why = f"no pod for {limit}, {view.refusal.reason}: {view.refusal.message}"
        return (why, None) if view.now >= due else ("", due)
    if not waiting:
        return "", None
    oldest = min(waiting, key=lambda pod: (pod.created, pod.index))
    # The time before a release counts as well.
    waits = min(oldest.created, since(status.rendezvous.waiting_since, oldest.created))
    due = max(view.since, waits) + seconds(limit)
    return (f"pod {oldest.name} waits for {limit}, {_what_for(oldest)}", None) if view.now >= due else ("", due)


def pending_advice(view: View, status: TrainingJobStatus) -> str:
    """Return what to do about pods that did not start in time: the next step of what they wait for."""
    waiting = (pod.reason for pod in active_pods(view, status).values() if pod.phase == "Pending" and pod.reason)
    reason = Reason.of(view.refusal.reason if view.refusal is not None else next(waiting, ""))
    step = reason.next_step if reason is not None else ""
    return f"{step}, or raise spec.health.pendingTimeout" if step else ""


def _what_for(pod: Pod) -> str:
    if pod.reason:
        return f"{pod.reason}: {pod.message}"
    if pod.node:
        return f"node {pod.node} pulls its images and creates its containers"
    return "no scheduler has placed it yet"


def start(view: View, status: TrainingJobStatus, gate: Barrier) -> tuple[str, float | None]:
    """Return running pods whose agents are silent or not ready, if this lasted longer than the timeout."""
    pods = [pod for pod in view.pods if pod.alive and not pod.deleting]
    if len(pods) < view.job.spec.nodes or any(pod.phase != "Running" for pod in pods) or not gate.waiting:
        return "", None
    late = [lack for pod in pods if (lack := _shortage(view, pod))]
    if not late:
        return "", None
    # A restarted agent ends its round: its time begins then.
    ended = moment(status.attempts[-1].end_time) if status.attempts else None
    begun = max([view.since, ended or 0.0, *(pod.started or pod.created for pod in pods)])
    due = begun + seconds(view.job.spec.health.start_timeout)
    return (", ".join(late[:3]), None) if view.now >= due else ("", due)


def silent(view: View, gate: Barrier) -> tuple[str, float | None]:
    """Return running pods whose agents have never connected, or when their silence becomes significant."""
    mute = [pod for pod in view.pods if pod.phase == "Running" and not pod.deleting and pod.uid not in view.agents]
    if not mute or not gate.waiting:
        return "", None
    # What a former operator process has established stays true until an agent connects.
    listening = 0.0 if view.job.status.rendezvous.silent else view.since
    due = max(listening, *(pod.started or pod.created for pod in mute)) + SILENT_AGENT_SECONDS
    return (", ".join(pod.name for pod in mute[:3]), None) if view.now >= due else ("", due)


def unheard(view: View, status: TrainingJobStatus) -> tuple[str, float | None]:
    """Return the members of the open round if none is connected any more, or when their silence becomes significant.

    One connected member is enough to know how training goes; without any, the figures are out of date.
    """
    members = status.rendezvous.members
    agents = [agent for uid in members if (agent := view.agents.get(uid)) is not None]
    mute = sorted(pod.name for pod in view.pods if pod.uid in members and pod.phase == "Running" and not pod.deleting)
    if any(agent.connected for agent in agents) or len(mute) < len(members):
        return "", None
    listening = 0.0 if view.job.status.rendezvous.silent else view.since
    due = max([listening, *(agent.seen for agent in agents)]) + SILENT_AGENT_SECONDS
    return (f"{', '.join(mute[:3])}; whether they train is not known", None) if view.now >= due else ("", due)


def workers_unheard(view: View, status: TrainingJobStatus) -> tuple[str, float | None]:
    """Return members of a starting round whose agents report but not their workers, or when that is significant.

    Only built-in workloads are expected to report: their workers do so before anything else.
    """
    agents = [view.agents.get(uid) for uid in status.rendezvous.members]
    connected = [agent for agent in agents if agent is not None and agent.connected]
    mute = {agent.pod_uid for agent in connected if all(each.round != status.round for each in agent.reports)}
    if view.job.spec.trainer is None or len(connected) < len(agents) or not mute:
        return "", None
    begun = status.attempts[-1].start_time if status.attempts else None
    due = since(begun, view.now) + SILENT_WORKERS_SECONDS
    names = sorted(pod.name for pod in view.pods if pod.uid in mute)
    return (f"none in {', '.join(names[:3])} since {begun}", None) if view.now >= due else ("", due)


def _shortage(view: View, pod: Pod) -> str:
    agent = view.agents.get(pod.uid)
    if agent is None:
        return f"no agent in {pod.name}"
    return f"the agent in {pod.name} never got ready" if agent.state == "starting" else ""
