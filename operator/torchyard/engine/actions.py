"""What the plan may ask for. Typed, frozen, idempotent: carrying one out twice does no harm."""

from typing import Literal

from msgspec import Struct, field

from torchyard.api.status import Images, TrainingJobStatus


class CreatePod(Struct, frozen=True, kw_only=True, tag=True, tag_field="action"):
    """Create the pod of one index; its name is deterministic, an existing pod of ours is success.

    `images`: those of its gang, None: of the spec and the installation. `avoid`: nodes on which containers of this gang
    could not be started lately; others are preferred.
    """

    name: str
    index: int
    incarnation: int
    avoid: tuple[str, ...] = ()
    images: Images | None = None


class DeletePod(Struct, frozen=True, kw_only=True, tag=True, tag_field="action"):
    """Delete one pod, with its uid as precondition.

    `if_alive`: not if it ended meanwhile; where nobody waits for the pod to be gone, its logs are worth a second look.
    """

    uid: str
    name: str
    grace_seconds: float
    why: str
    if_alive: bool = False


class CommandAgent(Struct, frozen=True, kw_only=True, tag=True, tag_field="action"):
    """Make this the wished-for command of one pod's agent (docs/protocol.md)."""

    pod_uid: str
    verb: Literal["wait", "run", "stop", "save-and-stop", "dump", "exit"]
    round: int = 0
    nodes: int = 0
    node_rank: int = 0
    master_address: str = ""
    master_port: int = 0
    procs: int = 0
    env: dict[str, str] = field(default_factory=dict)
    grace_seconds: float = 0.0
    code: int = 0
    dump_id: int = 0


class WriteStatus(Struct, frozen=True, kw_only=True, tag=True, tag_field="action"):
    """Replace the status.

    `urgent`: a state, condition, round or restart changed; written at once. `yields_until`: unix seconds; before, it
    lets the pods of other jobs go first, for nothing stands on it.
    """

    status: TrainingJobStatus
    urgent: bool
    yields_until: float = 0.0


class EmitEvent(Struct, frozen=True, kw_only=True, tag=True, tag_field="action"):
    """One event a transition."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


class DeleteJob(Struct, frozen=True, kw_only=True, tag=True, tag_field="action"):
    """Delete the finished job itself (TTL), with its uid as precondition."""

    uid: str


Action = CreatePod | DeletePod | CommandAgent | WriteStatus | EmitEvent | DeleteJob


class Plan(Struct, frozen=True, kw_only=True):
    """Actions in the order they must happen: status, agents, pods, events. `requeue_after`: seconds, None: on news.

    `pods_first`: nothing in the status must be persisted before the pods are there; it is written after them.
    """

    actions: tuple[Action, ...] = ()
    requeue_after: float | None = None
    pods_first: bool = False
