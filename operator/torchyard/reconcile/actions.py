"""Actions that a plan may contain. Typed, frozen and idempotent: executing one twice has the effect of once."""

from typing import Any, Literal

from msgspec import Struct, field

from torchyard.api.reasons import Reason
from torchyard.api.status import Images, TrainingJobStatus
from torchyard.schedulers.protocol import CreateObject, DeleteObject, PatchObject, PodChanges


class CreatePod(Struct, frozen=True, kw_only=True, tag=True, tag_field="action"):
    """Create the pod of one index; its name is deterministic, and an existing pod of this operator is success.

    `images`: those of its gang; None: from the spec and the installation. `avoid`: nodes that failed this job or
    others; other ones are preferred. `changes`: of the gang scheduler; None: none.
    """

    name: str
    index: int
    incarnation: int
    avoid: tuple[str, ...] = ()
    images: Images | None = None
    changes: PodChanges | None = None


class DeletePod(Struct, frozen=True, kw_only=True, tag=True, tag_field="action"):
    """Delete one pod, with its uid as precondition.

    `if_alive`: keep the pod if it has ended, so that its logs stay; for pods whose removal nothing waits for.
    """

    uid: str
    name: str
    grace_seconds: float
    why: str
    if_alive: bool = False


class CommandAgent(Struct, frozen=True, kw_only=True, tag=True, tag_field="action"):
    """Set the desired command of one pod's agent (docs/protocol.md)."""

    pod_uid: str
    verb: Literal["wait", "run", "stop", "save-and-stop", "exit"]
    round: int = 0
    nodes: int = 0
    node_rank: int = 0
    master_address: str = ""
    master_port: int = 0
    procs: int = 0
    env: dict[str, str] = field(default_factory=dict)
    bundle: dict[str, str] = field(default_factory=dict)
    program: dict[str, Any] = field(default_factory=dict)
    grace_seconds: float = 0.0
    code: int = 0


class WriteStatus(Struct, frozen=True, kw_only=True, tag=True, tag_field="action"):
    """Replace the status.

    `urgent`: a state, condition, round or restart changed; written at once. `yields_until`: unix seconds; until then
    pods of other jobs are created first, since nothing depends on this write.
    """

    status: TrainingJobStatus
    urgent: bool
    yields_until: float = 0.0


class EmitEvent(Struct, frozen=True, kw_only=True, tag=True, tag_field="action"):
    """Record one event for a transition."""

    type: Literal["Normal", "Warning"]
    reason: Reason
    message: str


class DeleteJob(Struct, frozen=True, kw_only=True, tag=True, tag_field="action"):
    """Delete the finished job itself (TTL), with its uid as precondition."""

    uid: str


Action = (
    CreatePod
    | DeletePod
    | CreateObject
    | PatchObject
    | DeleteObject
    | CommandAgent
    | WriteStatus
    | EmitEvent
    | DeleteJob
)


class Plan(Struct, frozen=True, kw_only=True):
    """Actions in the order of execution: status, agents, pods and objects of schedulers, events.

    `requeue_after`: seconds until the next plan; None: when something changes.

    `pods_first`: the status need not be persisted before the pods exist, and is written after them.
    """

    actions: tuple[Action, ...] = ()
    requeue_after: float | None = None
    pods_first: bool = False
