"""What one plan observes: frozen values of one job, joined with the round that the status names, once.

`View` is the input of the plan; times are unix seconds. A job without agents (`launcher.kind: none`) is observed like
any other: the state of an agent is derived from its pod. Such a pod trains from its start to its end: it can neither
wait for the other pods nor receive commands. A gang of such pods therefore takes part in one round, and the next round
gets new pods.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from torchyard.api.launch import MASTER_PORT, fewest_nodes
from torchyard.api.reasons import Reason
from torchyard.api.resource import TrainingJob
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.status import Artifact, Attempt, Batch, Cause, ImagePull, Images, NonFiniteMetric, TrainingJobStatus
from torchyard.reconcile.actions import CommandAgent
from torchyard.reconcile.code import Program, code_at, missing_code, same_pod
from torchyard.reconcile.node_memory import NodeMemory
from torchyard.reconcile.profile import NO_PROFILE, ProfileVerdict
from torchyard.schedulers.none import BY_OPERATOR
from torchyard.schedulers.protocol import Admission, Gang, Request

PodPhase = Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]
AgentState = Literal["starting", "ready", "running", "stopping", "exiting"]


class Pod(Struct, frozen=True, kw_only=True):
    """One pod of the job, as reported by the cluster. A view has only pods that were created for the job."""

    uid: str
    name: str
    index: int
    incarnation: int
    phase: PodPhase  # Unknown: it was Pending or Running, and its node is not ready
    node: str = ""
    address: str = ""
    created: float = 0.0
    placed: float | None = None  # when it was scheduled
    started: float | None = None
    finished: float | None = None
    deleting: bool = False
    unconfirmed: bool = False  # no watch shows it any more; the API server is being asked whether it is gone
    lingers: bool = False  # it has ended, but injected containers still run
    exit_code: int | None = None
    reason: str = ""  # why it waits, is deleted or ended (OOMKilled, Evicted, ...); a code of the cluster if unknown
    message: str = ""
    lines: tuple[str, ...] = ()  # the end of its log, if it ended without a report of its agent
    events: tuple[str, ...] = ()  # the last ones about a pod that ended or is gone, oldest first
    configuration: str = ""  # digest of the spec that it was created from; empty: unknown
    images: Images | None = None  # it was created with
    pulling: str = ""  # the image that its node pulls now
    pulling_since: float | None = None
    pulled: ImagePull | None = None  # the slowest pull of its images; None: less than a second
    image_digest: str = ""  # of the trainer's image as its node has it; empty: unknown
    leaving: str = ""  # how its node announces that it leaves or is broken; empty: it does not

    @property
    def alive(self) -> bool:
        """Whether its processes may still run: only a finished or vanished pod is certainly gone."""
        return self.phase not in {"Succeeded", "Failed"}

    @property
    def displaced(self) -> Reason | None:
        """Why the cluster took the pod away; None: it did not."""
        reason = Reason.of(self.reason)
        return reason if reason is not None and reason.took_pod else None


class Failure(Struct, frozen=True, kw_only=True, rename="camel"):
    """The first failure among the ranks of an agent."""

    rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    code: int | None = None
    exception: str = ""
    message: str = ""
    time: float = 0.0
    secondary: bool = False
    phase: str = ""
    step: int | None = None
    next_micro_batch: int | None = None  # out of GPU memory: the micro-batch to try, 0 if there is no smaller one
    out_of_memory: bool = False  # the kernel killed it for lack of memory
    classified: bool = False  # according to the agent or a failure file, `code` is from the table of exit codes
    exit_code_only: bool = False  # there is neither an exception nor a message: `message` describes the exit code


class RoundExit(Struct, frozen=True, kw_only=True, rename="camel"):
    """How a round ended in one pod."""

    round: int
    code: int
    saved: bool = False
    asked: bool = False
    time: float = 0.0
    answer: str = ""  # response to a request to save, of a program that reports no saves: ended, killed or deaf
    answer_seconds: float = 0.0  # from the request to the end
    answer_code: int = 0  # exit code of the program
    failure: Failure | None = None
    lines: tuple[str, ...] = ()


class RankReport(Struct, frozen=True, kw_only=True, rename="camel"):
    """The newest report of one rank (docs/protocol.md)."""

    round: int = 0
    rank: int = 0
    local_rank: int = 0
    counter: int = 0
    time: float = 0.0
    step: int = 0
    total_steps: int | None = None
    round_steps: int | None = None  # made in this round; None: not reported
    epoch: float | None = None
    phase: str = ""
    phase_since: float = 0.0
    still_seconds: float = 0.0  # without progress, if its agent considers that unusual
    device: str = ""  # device in training, as `cuda:0 NVIDIA H100`; empty: not reported
    from_start: bool = False  # steps are counted from the start of the program, which does not report where it resumed
    alone_seconds: float | None = (
        None  # how long it has made steps without a process group; None: it has one, or there is one rank
    )
    window_steps: int | None = None  # newest steps that the next three are of
    step_seconds: float | None = None  # median
    compute_seconds: float | None = None  # median without the waits for other ranks; None: those are not known
    compute_low_seconds: float | None = None  # lower quartile
    metrics: dict[str, float] = field(default_factory=dict)
    non_finite_metrics: dict[str, NonFiniteMetric] = field(default_factory=dict)
    throughput: dict[str, float] = field(default_factory=dict)
    checkpoint: dict[str, Any] | None = None
    batch: Batch | None = None
    warnings: tuple[str, ...] = ()
    artifacts: tuple[Artifact, ...] = ()


class InputReport(Struct, frozen=True, kw_only=True, rename="camel"):
    """One input as an agent reports it."""

    name: str = ""
    state: str = ""
    revision: str = ""
    bytes: int | None = None
    total_bytes: int | None = None
    files: int | None = None
    message: str = ""  # what delays it: the last error, or another process that fetches it

    @property
    def is_ready(self) -> bool:
        """Whether its files are there."""
        return self.state == "ready"


class RequirementsReport(Struct, frozen=True, kw_only=True, rename="camel"):
    """The packages that are installed in a pod for its code."""

    state: str = ""
    packages: int = 0
    message: str = ""


class GpuReport(Struct, frozen=True, kw_only=True, rename="camel"):
    """One GPU as NVML reports it."""

    uuid: str = ""
    index: int = 0
    product: str = ""
    memory_total_bytes: int = 0
    memory_used_bytes: int = 0
    utilization: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None


class Agent(Struct, frozen=True, kw_only=True):
    """The last state that the agent of one pod reported."""

    pod_uid: str
    instance: str
    state: AgentState
    seen: float  # when the last sync arrived, by the operator's clock
    connected: bool = True  # a poll is held or the last one ended less than two intervals ago
    current: bool = True  # this state is later than the newest command
    round: int = 0
    address: str = ""
    master_port: int = 0
    procs: int = 1
    exit: RoundExit | None = None
    content: str = ""  # digest of the files and variables that its workers are configured by; empty: unknown
    environment: str = ""  # digest of Python, packages and code; the agent of node rank 0 has it; empty: unknown
    reports: tuple[RankReport, ...] = ()
    gpus: tuple[GpuReport, ...] = ()
    inputs: tuple[InputReport, ...] = ()
    codes: tuple[str, ...] = ()  # digests of the code that was pushed into its pod
    requirements: RequirementsReport | None = None
    notices: tuple[str, ...] = ()

    @property
    def installs(self) -> bool:
        """Whether requirements are still being installed in its pod."""
        return self.requirements is not None and self.requirements.state != "ready"

    @property
    def prepares(self) -> bool:
        """Whether inputs of its pod are still being fetched, or requirements installed."""
        return self.installs or any(not each.is_ready for each in self.inputs)


class Refusal(Struct, frozen=True, kw_only=True):
    """A rejected creation of pods. It applies until a creation succeeds or the spec changes."""

    reason: Reason
    message: str = ""
    permanent: bool = False  # retrying cannot help
    since: float = 0.0
    until: float = 0.0  # not retried before


class View(Struct, frozen=True, kw_only=True):
    """Everything that `plan` may know."""

    job: TrainingJob
    pods: tuple[Pod, ...]
    agents: Mapping[str, Agent]  # by pod uid
    commands: Mapping[str, CommandAgent]  # last command of this process, by pod uid; empty after a restart
    now: float
    since: float = 0.0
    """When this process first looked at the job. Older silence proves nothing: no operator was listening."""
    term: float = math.inf
    """Since when this process has been the leader."""
    refusal: Refusal | None = None
    name_taken: bool = False
    """Whether the last try to create a pod met one of the same name that is not the job's."""
    failing: Refusal | None = None  # writes that the API server does not answer, or answers with an internal error
    configuration: str = ""
    """Digest of the spec, which the pods of one gang have in common."""
    images: Images | None = None
    """Images that new pods would be created with; None where pods have none."""
    files_stay: bool = True
    """Whether checkpoints and exports outlive the pods."""
    program: Program | None = None
    """What the next round runs, where code travels with the job."""
    agentless: bool = False
    """Whether the pods start the program themselves, without an agent."""
    procs: int | Literal["auto"] = "auto"
    """Workers of a pod that the spec asks for; auto: as many as the pod has GPUs."""
    scheduling: Request = Request(name=BY_OPERATOR.name, scheduler=BY_OPERATOR)  # with the objects of the job
    node_memory: NodeMemory | None = None  # None: there are no other nodes
    profile: ProfileVerdict = NO_PROFILE
    """What the profile of the job says; the spec of `job` has its values already."""


_OF_HARDWARE = frozenset({Reason.HARDWARE_SUSPECTED, Reason.STRAGGLER})
NODE_SILENCE_SECONDS = 20.0
# How long a kubelet may itself retry to create a container before the pod is replaced, on another node if possible.
STUCK_START_SECONDS = 60.0


class Observed(Struct, frozen=True, kw_only=True):
    """The pods, agents and reports of a job, as seen from one status.

    Attributes:
        view: what was gathered; every started pod has an agent in it.
        status: the status that names the round.
        pods: by uid.
        active: the active pod of each index, see `observe`.
        reports: the newest reports of the ranks of the open round, by rank; none between rounds.
        size: the number of pods of the gang. An open round keeps its size: a changed `spec.nodes` applies to the next.
    """

    view: View
    status: TrainingJobStatus
    pods: Mapping[str, Pod]
    active: Mapping[int, Pod]
    reports: tuple[RankReport, ...]
    size: int

    @property
    def newest_step(self) -> int:
        """Return the newest step of the newest round."""
        known = self.status.attempts[-1].end_step if self.status.attempts else 0
        return max([known, *(report.step for report in self.reports)])

    @property
    def desired_pods(self) -> int:
        """The number of pods that should exist, of indices from 0: the gang and its spares."""
        spec = self.view.job.spec
        return admitted_nodes(self.view) + spec.spares if is_flexible(spec) else self.size

    @property
    def slowest_pull(self) -> ImagePull | None:
        """The slowest pull of an image for the pods of the gang."""
        pulls = [pod.pulled for pod in self.active.values() if pod.pulled is not None]
        return max(pulls, key=lambda each: (each.seconds, each.image), default=None)

    @property
    def is_complete(self) -> bool:
        """Whether a round is open and every pod is a member of it: nothing is created or deleted before it ends."""
        meet = self.status.rendezvous
        if not meet.open or meet.released or self.desired_pods > len(meet.members):
            return False
        return self.pods.keys() <= set(meet.members)

    def after(self, status: TrainingJobStatus) -> "Observed":
        """Return what is observed from the status that a transition left; figures alone change nothing."""
        facts = (status.rendezvous, status.round, status.incarnation)
        if facts == (self.status.rendezvous, self.status.round, self.status.incarnation):
            return replace(self, status=status)
        return observe(self.view, status)


def admission(view: View) -> Admission:
    """Return whether pods may exist now. What is not known yet stops nothing."""
    request = view.scheduling
    if view.profile.reason:
        return Admission(pods="keep", reason=view.profile.reason, evidence=view.profile.evidence)
    if absent := missing_code(view.job):
        return Admission(pods="keep", reason=Reason.CODE_MISSING, evidence=absent)
    if request.missing:
        return Admission(pods="keep", reason=request.reason, evidence=request.missing)
    if not request.known:
        return Admission(pods="keep", reason=Reason.WAITING_FOR_SCHEDULER, evidence="its objects are being listed")
    return request.scheduler.admission(gang_of(view))


def admitted_nodes(view: View) -> int:
    """Return the members that the gang may have now: `spec.nodes`, or fewer while an elastic gang waits for quota."""
    spec = view.job.spec
    if spec.elastic is None:
        return spec.nodes
    size = admission(view).size
    return spec.nodes if size is None else max(fewest_nodes(spec), min(spec.nodes, size - spec.spares))


def gang_of(view: View) -> Gang:
    """Return what the scheduler may know of the job."""
    return Gang(
        job=view.job,
        request=view.scheduling,
        now=view.now,
        live_pods=sum(pod.alive for pod in view.pods),
        unplaced=any(pod.phase == "Pending" and not pod.node and not pod.deleting for pod in view.pods),
    )


def is_flexible(spec: TrainingJobSpec) -> bool:
    """Return whether a round may have other members than the pods of indices 0 to `nodes`."""
    return spec.elastic is not None or spec.spares > 0


def observe(view: View, status: TrainingJobStatus) -> Observed:
    """Join a view with the round that the status names.

    The active pod of an index is alive, not being deleted and reachable; members of the newest round come first.
    Between rounds, a pod whose agent knows a newer round than the status is not active: the status was lost or reset,
    and the agent would reject any round that could be opened.
    """
    members = set(status.rendezvous.members)
    active: dict[int, Pod] = {}
    for pod in sorted(view.pods, key=lambda pod: (pod.uid in members, pod.incarnation, pod.uid)):
        stays = pod.alive and not (
            node_lost(view, pod)
            or cannot_start(view, pod)
            or is_ahead(view, status, pod)
            or is_outdated(view, status, pod)
            or is_suspect(status, pod)
            or is_leaving(view, status, pod)
        )
        if ((stays and not is_spent(view, status, pod)) or counts_for_index(view, status, pod)) and not pod.deleting:
            active[pod.index] = pod
    return Observed(
        view=view,
        status=status,
        pods={pod.uid: pod for pod in view.pods},
        active=active,
        reports=_reports(view, status),
        size=len(status.rendezvous.members) if status.rendezvous.open else view.job.spec.nodes,
    )


def _reports(view: View, status: TrainingJobStatus) -> tuple[RankReport, ...]:
    if not status.rendezvous.open:
        return ()
    members = (view.agents[uid] for uid in status.rendezvous.members if uid in view.agents)
    reports = (report for agent in members for report in agent.reports if report.round == status.round)
    return tuple(sorted(reports, key=lambda report: report.rank))


def is_ahead(view: View, status: TrainingJobStatus, pod: Pod) -> bool:
    """Return whether the agent of a pod knows a newer round than the status, between rounds."""
    agent = view.agents.get(pod.uid)
    return agent is not None and not status.rendezvous.open and agent.round > status.round


def is_outdated(view: View, status: TrainingJobStatus, pod: Pod) -> bool:
    """Return whether a pod can take part in no further round, since its configuration is not that of the gang."""
    if status.rendezvous.open:
        return False
    return lacks_configuration(view, pod) or pod.incarnation < status.rendezvous.oldest_incarnation


def lacks_configuration(view: View, pod: Pod) -> bool:
    """Return whether a pod was created from another spec, and has not received the code that differs.

    Its agent is asked, if it can be: a new operator process has not heard of it yet.
    """
    if pod.configuration in {"", view.configuration}:
        return False
    if not same_pod(pod.configuration, view.configuration):
        return True
    agent = view.agents.get(pod.uid)
    if agent is None or not agent.connected:
        return pod.phase == "Pending"
    return not any(digest.startswith(code_at(view.configuration)) for digest in agent.codes)


def is_edited(view: View, status: TrainingJobStatus) -> bool:
    """Return whether the newest round runs another program than the spec has now."""
    ran = status.rendezvous.program
    return bool(ran) and view.program is not None and ran != view.program.digest


def is_suspect(status: TrainingJobStatus, pod: Pod) -> bool:
    """Return whether the hardware of this pod ended the last round, or was slow: its replacement avoids the node."""
    if status.rendezvous.open or not status.attempts:
        return False
    cause = status.attempts[-1].cause
    return cause is not None and cause.class_ in _OF_HARDWARE and cause.pod == pod.name


def is_leaving(view: View, status: TrainingJobStatus, pod: Pod) -> bool:
    """Return whether the node of a pod announces its end, between rounds; a pod without an agent waits for it."""
    return bool(pod.leaving) and not status.rendezvous.open and not view.agentless


def is_spent(view: View, status: TrainingJobStatus, pod: Pod) -> bool:
    """Return whether the round of a pod without an agent has ended for the gang, even if the pod still trains."""
    former = pod.uid in status.rendezvous.members or pod.incarnation < status.incarnation
    return view.agentless and not status.rendezvous.open and former


def counts_for_index(view: View, status: TrainingJobStatus, pod: Pod) -> bool:
    """Return whether a pod without an agent that has ended still counts: it ended before it was seen running."""
    fresh = pod.incarnation >= status.incarnation and pod.uid not in status.rendezvous.members
    return view.agentless and fresh and not status.rendezvous.open and pod.exit_code is not None


def with_pod_agents(view: View) -> View:
    """Return the view with an agent for each started pod of a job without agents."""
    agents = {pod.uid: _agent(view, pod) for pod in view.pods if pod.phase != "Pending"}
    return replace(view, agents=agents, commands={})


def _agent(view: View, pod: Pod) -> Agent:
    status = view.job.status
    member = pod.uid in status.rendezvous.members
    ended = pod.phase == "Succeeded" and not pod.exit_code
    return Agent(
        pod_uid=pod.uid,
        instance=pod.uid,
        state="running" if member else "ready",
        seen=view.since,
        # Only the node of the pod can report its state, and a pod that is being deleted counts as gone.
        connected=pod.phase != "Unknown" and not pod.deleting,
        round=status.round if member else 0,
        address=pod.address or pod.name,
        master_port=MASTER_PORT,
        procs=max(1, view.job.spec.gpus_per_node),
        exit=RoundExit(round=status.round, code=0, time=pod.finished or view.now) if member and ended else None,
    )


def node_lost(view: View, pod: Pod) -> bool:
    """Return whether the node is not ready and the agent has been silent for a while; one alone proves nothing."""
    agent = view.agents.get(pod.uid)
    silent = agent is None or not agent.connected
    return pod.phase == "Unknown" and silent and view.now - _silent_since(view, pod) >= NODE_SILENCE_SECONDS


def node_loss_due(view: View) -> tuple[float, ...]:
    """Return when nodes that are not ready may count as lost: the silence of an agent causes no event."""
    return tuple(
        max(view.now + 1.0, _silent_since(view, pod) + NODE_SILENCE_SECONDS)
        for pod in view.pods
        if pod.phase == "Unknown" and not node_lost(view, pod)
    )


def _silent_since(view: View, pod: Pod) -> float:
    """Return since when the agent is silent; a new pod has had no time to report."""
    agent = view.agents.get(pod.uid)
    made = pod.created if pod.created <= view.now else 0.0
    return max(view.since, made, agent.seen if agent is not None else 0.0)


def cannot_start(view: View, pod: Pod) -> bool:
    """Return whether the kubelet of a pod has tried for too long to create its containers."""
    due = stuck_start_due(pod)
    return due is not None and view.now >= due


def stuck_start_due(pod: Pod) -> float | None:
    """Return when a pod whose containers cannot be created is to be replaced; None: they can."""
    if pod.phase != "Pending" or not never_starts(pod.reason):
        return None
    return (pod.placed or pod.created) + STUCK_START_SECONDS


def never_starts(code: str) -> bool:
    """Return whether a reason means that a container of the pod could not be created or started."""
    reason = Reason.of(code)
    return reason is not None and reason.start_attempts > 0


def start_failures(attempts: Sequence[Attempt], like: Callable[[str], bool] = never_starts) -> list[Cause]:
    """Return the causes of the newest attempts in a row that ended because a container could not be started.

    Args:
        attempts: the past rounds.
        like: whether the reason of an attempt belongs to the row.
    """
    found: list[Cause] = []
    for attempt in reversed(attempts):
        if attempt.cause is None or not like(attempt.cause.class_) or attempt.end_step > attempt.start_step:
            break
        found.append(attempt.cause)
    return found
