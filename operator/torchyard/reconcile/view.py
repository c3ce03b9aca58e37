"""The input of the plan: frozen values of one job, gathered before planning. Times are unix seconds."""

import math
from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, field

from torchyard.api.reasons import Reason
from torchyard.api.resource import TrainingJob
from torchyard.api.status import Artifact, Images
from torchyard.reconcile.actions import CommandAgent

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
    configuration: str = ""  # digest of the spec that it was created from; empty: unknown
    images: Images | None = None  # it was created with
    image_digest: str = ""  # of the trainer's image as its node has it; empty: unknown

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
    traceback: str = ""
    time: float = 0.0
    secondary: bool = False
    phase: str = ""
    step: int | None = None
    next_micro_batch: int | None = None  # out of GPU memory: the micro-batch to try, 0 if there is no smaller one
    out_of_memory: bool = False  # the kernel killed it for lack of memory
    classified: bool = False  # the agent or a failure file says that `code` is one of the table of exit codes


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
    metrics: dict[str, float] = field(default_factory=dict)
    throughput: dict[str, float] = field(default_factory=dict)
    checkpoint: dict[str, Any] | None = None
    warnings: tuple[str, ...] = ()
    artifacts: tuple[Artifact, ...] = ()


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
    notices: tuple[str, ...] = ()


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
    """Since when this process, and no other, decides."""
    refusal: Refusal | None = None
    name_taken: bool = False
    """Whether the last try to create a pod met one of the same name that is not the job's."""
    configuration: str = ""
    """Digest of the spec, which the pods of one gang have in common."""
    images: Images | None = None
    """Images that new pods would be created with; None where pods have none."""
    files_stay: bool = True
    """Whether checkpoints and exports outlive the pods."""
