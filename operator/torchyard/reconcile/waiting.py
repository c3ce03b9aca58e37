"""The barrier before a round: what a job waits for, for how long, and when a partially scheduled gang is released.

Kubernetes schedules pods one by one: of two gangs of eight, each may get four pods, and both would wait forever. After
`spec.scheduling.gangTimeout` without another scheduled pod, a gang deletes all its pods and is recreated after a pause.
Timeout and pause are randomised, so that one of two gangs gets the capacity.

Each function of a timeout returns a sentence if it has expired, and when it will.
"""

import zlib
from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from torchyard.api.launch import fewest_nodes
from torchyard.api.reasons import NO_REASON, Reason
from torchyard.api.status import State, TrainingJobStatus, with_reason
from torchyard.api.values import Time, plural, since
from torchyard.reconcile import elastic, inputs, requirements
from torchyard.reconcile.gang import FUTILE, RELEASED, pause_end
from torchyard.reconcile.observed import Agent, Observed, Pod, View, admission, admitted_nodes, is_flexible

# Twice as long as an overloaded API server takes to answer; a hanging webhook takes longer.
UNANSWERED_SECONDS = 20.0
SILENT_AGENT_SECONDS = 30.0
# A pull that takes longer is a reason to wait that users want to know.
PULL_SECONDS = 10.0


class Barrier(Struct, frozen=True, kw_only=True):
    """The members that are ready for the next round, in rank order; `waiting` names what the others lack.

    `due`: when a smaller round may open; None: never, or only when something changes.
    """

    ready: tuple[tuple[Pod, Agent], ...]
    waiting: tuple[str, ...]
    due: float | None = None


def barrier(seen: Observed, status: TrainingJobStatus) -> Barrier:
    """Return the members that are ready: their agents are connected and idle."""
    held = seen.active
    ready: list[tuple[Pod, Agent]] = []
    waiting: list[str] = []
    for index in range(seen.desired_pods):
        pod = held.get(index)
        agent = seen.view.agents.get(pod.uid) if pod is not None else None
        missing = _not_ready(pod, agent)
        if pod is not None and agent is not None and not missing:
            ready.append((pod, agent))
        else:
            waiting.append(missing)
    if not is_flexible(seen.view.job.spec):
        return Barrier(ready=tuple(ready), waiting=tuple(waiting))
    members = tuple(elastic.next_members(seen.view, ready))
    due = elastic.smaller_due(seen.view, status, ready)
    if len(members) == seen.view.job.spec.nodes or (due is not None and seen.view.now >= due):
        return Barrier(ready=members, waiting=())
    return Barrier(ready=members, waiting=tuple(waiting), due=due)


def _not_ready(pod: Pod | None, agent: Agent | None) -> str:
    if pod is None or (pod.phase == "Pending" and not pod.reason):
        return ""  # it is being created, which the state says already
    if agent is None or not agent.connected:
        if pod.phase == "Unknown":
            return f"{pod.name}: its node {pod.node} is not ready"
        return f"{pod.name}: {pod.reason or pod.phase}" if pod.phase != "Running" else f"{pod.name}: no agent yet"
    if agent.state != "ready":
        return f"{pod.name}: agent {agent.state}"
    # It may have begun its last command without having reported it.
    return "" if agent.current else f"{pod.name}: agent has not confirmed its last command"


def may_open(view: View, status: TrainingJobStatus, gate: Barrier) -> tuple[bool, float | None]:
    """Return whether the next round may open now, and when the back-off ends that delays it."""
    due = status.rendezvous.next_round_time
    if gate.waiting or not gate.ready:
        return False, gate.due
    seated = {pod.uid for pod, _ in gate.ready}
    others = [pod for pod in view.pods if pod.alive and pod.uid not in seated]
    if is_flexible(view.job.spec):
        others = [pod for pod in others if not elastic.runs_nothing(view, status, pod)]
    if others:
        # Workers of an older round may still run there, and two rounds must not train at the same time.
        return False, None
    if due is not None and view.now < due:
        return False, due
    leader = gate.ready[0][1]
    return bool(leader.address) and leader.master_port > 0, None


def difference(gate: Barrier) -> str:
    """Return how the configurations of the members differ; empty: they do not, as far as is known."""
    images: dict[str, tuple[str, str]] = {}  # repository -> digest, pod
    contents: dict[str, str] = {}  # digest -> pod
    for pod, agent in gate.ready:
        repository, _, digest = pod.image_digest.rpartition("@")
        known, other = images.setdefault(repository, (digest, pod.name))
        if known != digest:
            return f"{other} has image {repository}@{known[:19]}, {pod.name} has {digest[:19]}"
        if agent.content:
            contents.setdefault(agent.content, pod.name)
    if len(contents) > 1:
        first, second, *_ = contents.values()
        return f"{first} and {second} read different config maps, secrets, script or configuration"
    return inputs.difference(gate.ready) if any(agent.inputs for _, agent in gate.ready) else ""


def with_pending_reason(seen: Observed, status: TrainingJobStatus, gate: Barrier, silent: str) -> TrainingJobStatus:
    """Return the status with what the barrier waits for: a reason of the cluster, a failure, or missing members."""
    view = seen.view
    if pause_end(view, status) is not None:
        return status
    held = seen.active
    recovering = status.state == State.RECOVERING
    state = State.RECOVERING if recovering else State.PENDING
    obstacle = _obstacle(view, held) or _blocked(held) or _slow_pull(view, held)
    if obstacle is not None:
        return with_reason(_with_delay(status, delayed=recovering), state, *obstacle)
    missing = [each for each in gate.waiting if each] or _stopping(view, held)
    evidence = f"{len(gate.ready)} of {view.job.spec.nodes} ready" + (f"; {'; '.join(missing[:3])}" if missing else "")
    uncreated = _unanswered(view, status, held)
    if recovering and uncreated:
        return with_reason(_with_delay(status, delayed=True), state, Reason.PODS_NOT_CREATED, uncreated)
    running = all(index in held and held[index].phase == "Running" for index in range(admitted_nodes(view)))
    awaited = (Reason.AGENT_SILENT, silent)
    if view.job.spec.code is not None and not silent and (fetching := inputs.fetching_code(seen)):
        awaited = (Reason.FETCHING_CODE, fetching)
    elif view.job.spec.inputs and not silent:
        awaited = (Reason.FETCHING_INPUTS, inputs.fetching(seen))
    if not silent and not awaited[1]:
        awaited = (Reason.INSTALLING_REQUIREMENTS, requirements.installing(seen))
    if recovering and running and awaited[1]:
        return with_reason(_with_delay(status, delayed=True), state, *awaited)
    if recovering:
        # The cause of the failure is shown until something else delays the gang; that is resolved now.
        after = with_reason(_with_delay(status, delayed=False), state, Reason.RECOVERING, evidence)
        return after if status.rendezvous.delayed else status
    if running:
        shown = awaited if awaited[1] else (Reason.WAITING_FOR_AGENTS, evidence)
        return with_reason(status, State.STARTING, *shown)
    reason = Reason.PODS_NOT_CREATED if uncreated else Reason.WAITING_FOR_PODS
    return with_reason(status, State.PENDING, reason, uncreated or evidence)


def pull_due(view: View) -> float | None:
    """Return when a pull of an image counts as long."""
    begun = [pod.pulling_since for pod in view.pods if pod.pulling and pod.pulling_since is not None]
    return min((since + PULL_SECONDS for since in begun if since + PULL_SECONDS > view.now), default=None)


def _blocked(held: Mapping[int, Pod]) -> tuple[Reason, str] | None:
    """Return why a pod cannot start, in the words of the cluster."""
    blocked = next(
        (pod for pod in held.values() if pod.phase == "Pending" and pod.reason not in {"", Reason.STARTING}), None
    )
    if blocked is None:
        return None
    known = Reason.of(blocked.reason)
    why = blocked.message if known is not None else f"{blocked.reason}: {blocked.message}"
    return known or Reason.WAITING_FOR_PODS, why


def _slow_pull(view: View, held: Mapping[int, Pod]) -> tuple[Reason, str] | None:
    """Return the image that keeps the gang from its start, and for how many pods; None: no pull takes long."""
    pods = [pod for pod in held.values() if pod.pulling and pod.pulling_since is not None]
    late = [pod.pulling for pod in pods if view.now - (pod.pulling_since or view.now) >= PULL_SECONDS]
    if not late:
        return None
    image = max(sorted(set(late)), key=late.count)
    count = sum(pod.pulling == image for pod in pods)
    return Reason.PULLING_IMAGE, f"{image}, for {count} of {plural(view.job.spec.nodes, 'pod')}"


def _obstacle(view: View, held: Mapping[int, Pod]) -> tuple[Reason, str] | None:
    """Return why missing pods cannot be created: the API server or the gang scheduler does not let them exist."""
    if view.refusal is not None:
        return view.refusal.reason, view.refusal.message
    verdict = admission(view)
    if verdict.pods == "keep" and len(held) < view.job.spec.nodes:
        return verdict.reason, verdict.evidence
    return None


def _with_delay(status: TrainingJobStatus, *, delayed: bool) -> TrainingJobStatus:
    if status.rendezvous.delayed == delayed:
        return status
    return replace(status, rendezvous=replace(status.rendezvous, delayed=delayed))


def _unanswered(view: View, status: TrainingJobStatus, held: Mapping[int, Pod]) -> str:
    """Return which pods the API server has not created for some time, and why; empty: it does not fail to."""
    nodes = admitted_nodes(view)
    lacking = sum(index not in held for index in range(nodes))
    is_new = status.round == 0 and status.rendezvous.releases == 0 and status.state != State.RECOVERING
    # A job that was queued had no pods to be created until now.
    first = is_new and not view.pods and view.job.status.state not in {State.QUEUED, State.SUSPENDED}
    since = view.failing.since if view.failing is not None else view.since if first else view.now
    if not lacking or view.now - since < UNANSWERED_SECONDS:
        return ""
    which = "no pod" if lacking == nodes else f"{lacking} of {nodes} pods missing"
    why = view.failing.message if view.failing is not None else "for an unknown reason"
    return f"{which} for more than {UNANSWERED_SECONDS:g} s, {why}"


def _stopping(view: View, held: Mapping[int, Pod]) -> list[str]:
    """Return former pods that have to be gone before their indices get new pods."""
    former = sorted(pod.name for pod in view.pods if pod.alive and pod.index not in held)
    return [f"{name} is still stopping" for name in former]


def pending(seen: Observed, status: TrainingJobStatus) -> tuple[str, float | None]:
    """Return pods that have waited longer than `spec.health.pendingTimeout`.

    Only the time that this process has observed counts, since the clock of the API server may differ. A new process
    starts to count again, which is better than failing every job that waits.
    """
    view = seen.view
    limit = view.job.spec.health.pending_timeout
    waiting = [pod for pod in seen.active.values() if pod.phase == "Pending"]
    if limit is None:
        return "", None
    if view.refusal is not None:
        due = view.refusal.since + limit
        why = f"no pod for {limit}, {view.refusal.reason}: {view.refusal.message}"
        return (why, None) if view.now >= due else ("", due)
    if not waiting:
        return "", None
    oldest = min(waiting, key=lambda pod: (pod.created, pod.index))
    # The time before a release counts as well.
    waits = min(oldest.created, since(status.rendezvous.waiting_since, oldest.created))
    due = max(view.since, waits) + limit
    return (f"pod {oldest.name} waits for {limit}, {_what_for(oldest)}", None) if view.now >= due else ("", due)


def waited_for(seen: Observed) -> Reason:
    """Return the reason of the pods that wait; empty: none is known."""
    if seen.view.refusal is not None:
        return seen.view.refusal.reason
    waiting = (pod.reason for pod in seen.active.values() if pod.phase == "Pending" and pod.reason)
    return Reason.of(next(waiting, "")) or NO_REASON


def _what_for(pod: Pod) -> str:
    if pod.reason:
        return f"{pod.reason}: {pod.message}"
    if pod.node:
        return f"node {pod.node} pulls its images and creates its containers"
    return "no scheduler has assigned a node yet"


def start(view: View, status: TrainingJobStatus, gate: Barrier) -> tuple[str, float | None]:
    """Return running pods whose agents are silent or not ready, if this lasted longer than the timeout."""
    pods = [pod for pod in view.pods if pod.alive and not pod.deleting]
    if len(pods) < admitted_nodes(view) or any(pod.phase != "Running" for pod in pods) or not gate.waiting:
        return "", None
    late = [shortage for pod in pods if (shortage := _shortage(view, pod))]
    if not late:
        return "", None
    # A restarted agent ends its round: its time begins then.
    ended = status.attempts[-1].end_time if status.attempts else None
    begun = max([view.since, ended or 0.0, *(pod.started or pod.created for pod in pods)])
    due = begun + view.job.spec.health.start_timeout
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


def _shortage(view: View, pod: Pod) -> str:
    agent = view.agents.get(pod.uid)
    if agent is None:
        return f"no agent in {pod.name}"
    # A preparation ends by itself: requests to a source have time limits, and retries a number.
    late = agent.state == "starting" and not agent.prepares
    return f"the agent in {pod.name} never got ready" if late else ""


# The first pause exceeds the time after which a scheduler retries an unschedulable pod (10 s). A gang with a shorter
# timeout than that gets a shorter pause.
SHORTEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 5.0, 30.0, 120.0
# If the nodes can never hold the gang, only new nodes help: retried rarely.
LONGEST_FUTILE_PAUSE_SECONDS = 1800.0
SPREAD = 0.25  # share of the timeout by which the release may be delayed


class Shortage(Struct, frozen=True):
    """Why a part of the gang cannot be scheduled, and since when."""

    since: float
    reason: str
    message: str


def release_gang(seen: Observed, status: TrainingJobStatus) -> tuple[TrainingJobStatus | None, float | None]:
    """Return the status of a gang that is to be released, or when to check again.

    A gang whose files would be lost with its pods is not released, nor one that a scheduler places all at once.
    """
    view = seen.view
    pause = pause_end(view, status)
    if pause is not None:
        return None, pause
    held = seen.active.values()
    placed = [pod for pod in held if pod.node]
    shortage = _capacity_shortage(view, held)
    saved = status.checkpoint is not None and not view.files_stay
    enough = view.job.spec.elastic is not None and len(placed) >= fewest_nodes(view.job.spec)
    together = view.scheduling.scheduler.places_together or admission(view).pods != "create"
    if enough or together or saved or not placed or shortage is None:
        return None, None
    begun = max([view.since, shortage.since, *(pod.placed or pod.created for pod in placed)])
    due = begun + _gang_timeout(view) * (1 + SPREAD * _chance(view, status))
    if view.now < due:
        return None, due
    limit = view.job.spec.scheduling.gang_timeout
    state = State.RECOVERING if status.state == State.RECOVERING else State.PENDING
    if shortage.reason == FUTILE:
        return with_reason(_emptied(view, status, shortage), state, FUTILE, shortage.message), None
    why = f"{shortage.reason}: {shortage.message}"
    evidence = f"{len(placed)} of {plural(view.job.spec.nodes, 'pod')} for {limit}, {why}"
    return with_reason(_emptied(view, status, shortage), state, RELEASED, evidence), None


def _emptied(view: View, status: TrainingJobStatus, shortage: Shortage) -> TrainingJobStatus:
    """Return the status without members; the next pods have new names.

    The pause doubles each time in a row. `pendingTimeout` counts from the first release.
    """
    meet = status.rendezvous
    first = min(max(_gang_timeout(view), SHORTEST_PAUSE_SECONDS), FIRST_PAUSE_SECONDS)
    longest = LONGEST_FUTILE_PAUSE_SECONDS if shortage.reason == FUTILE else LONGEST_PAUSE_SECONDS
    pause = min(first * 2.0 ** min(meet.releases, 8), longest)
    meet = replace(
        meet,
        members=[""] * len(meet.members),
        next_round_time=Time.of(view.now + pause * (1 + _chance(view, status))),
        released=True,
        delayed=status.state == State.RECOVERING,
        releases=meet.releases + 1,
        waiting_since=meet.waiting_since or Time.of(shortage.since),
    )
    return replace(status, incarnation=status.incarnation + 1, rendezvous=meet)


def _capacity_shortage(view: View, held: Iterable[Pod]) -> Shortage | None:
    """Return why pods cannot be scheduled; pods that a gang scheduler holds back do not count."""
    short = [
        pod
        for pod in held
        if pod.phase == "Pending" and not pod.node and pod.reason not in {"", Reason.SCHEDULING_GATED}
    ]
    if short:
        oldest = min(short, key=lambda pod: (pod.created, pod.index))
        return Shortage(since=oldest.created, reason=oldest.reason, message=oldest.message)
    if view.refusal is not None and not view.refusal.permanent:
        return Shortage(since=view.refusal.since, reason=view.refusal.reason, message=view.refusal.message)
    return None


def _gang_timeout(view: View) -> float:
    return view.job.spec.scheduling.gang_timeout


def _chance(view: View, status: TrainingJobStatus) -> float:
    """Return a number between 0 and 1 that stays the same while the gang has these pods."""
    return zlib.crc32(f"{view.job.metadata.uid}/{status.incarnation}".encode()) / 2**32
