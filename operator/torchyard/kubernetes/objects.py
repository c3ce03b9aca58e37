"""The parts of Kubernetes objects that we read; all other fields are neither decoded nor kept in memory."""

from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from torchyard.api.resource import GROUP, KIND
from torchyard.kubernetes.manifests import names
from torchyard.kubernetes.provenance import MAX_LENGTH


class Read(Struct, frozen=True, rename="camel", kw_only=True, gc=False):
    """Base of these objects: frozen, unknown fields ignored. They form no cycles, so the collector ignores them."""


class Owner(Read, frozen=True, kw_only=True, gc=False):
    """One owner of an object."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None

    def is_job(self, *, name: str | None = None, uid: str | None = None) -> bool:
        """Return whether this is a TrainingJob of our API group, of that name and uid where they are given."""
        group = self.api_version.partition("/")[0]
        known = (group, self.kind) == (GROUP, KIND) and bool(self.uid)
        return known and name in {None, self.name} and uid in {None, self.uid}


class PodAnnotations(Read, frozen=True, kw_only=True, gc=False):
    """The annotations of a pod that are read."""

    provenance: str = msgspec.field(default="", name=names.PROVENANCE)
    configuration: str = msgspec.field(default="", name=names.CONFIGURATION)


class PodMeta(Read, frozen=True, kw_only=True, gc=False):
    """Metadata of a pod."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    annotations: PodAnnotations | None = None
    owner_references: tuple[Owner, ...] | None = None

    @property
    def provenance(self) -> str:
        """The operator's signature; empty: none, or too long to be one."""
        found = self.annotations.provenance if self.annotations is not None else ""
        return found if len(found) <= MAX_LENGTH else ""

    @property
    def controller(self) -> Owner | None:
        """The owner that controls the pod."""
        return next((each for each in self.owner_references or () if each.controller), None)


class PodCondition(Read, frozen=True, kw_only=True, gc=False):
    """One condition of a pod or a node."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class Waiting(Read, frozen=True, kw_only=True, gc=False):
    """A container that has not started."""

    reason: str = ""
    message: str = ""


class Started(Read, frozen=True, kw_only=True, gc=False):
    """A container that runs."""

    started_at: str | None = None


class Terminated(Read, frozen=True, kw_only=True, gc=False):
    """A container that ended."""

    exit_code: int = 0
    signal: int | None = None
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None


class ContainerState(Read, frozen=True, kw_only=True, gc=False):
    """The state of a container: one of three."""

    waiting: Waiting | None = None
    running: Started | None = None
    terminated: Terminated | None = None


class ContainerStatus(Read, frozen=True, kw_only=True, gc=False):
    """The status of one container."""

    name: str = ""
    image: str = ""
    image_id: str = msgspec.field(default="", name="imageID")
    state: ContainerState = ContainerState()


class PodResourceClaim(Read, frozen=True, kw_only=True, gc=False):
    """A claim of devices in a pod, from a template."""

    name: str = ""
    resource_claim_template_name: str = ""


class PodStatus(Read, frozen=True, kw_only=True, gc=False):
    """The status of a pod from kubelet and scheduler."""

    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    conditions: tuple[PodCondition, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None
    resource_claim_statuses: tuple[PodResourceClaim, ...] | None = None

    def condition(self, kind: str) -> PodCondition | None:
        """Return the condition of this type."""
        return next((each for each in self.conditions or () if each.type == kind), None)


class ResourceLimits(Read, frozen=True, kw_only=True, gc=False):
    """The limits of a container that explain something."""

    cpu: str | int | float = ""
    memory: str | int = ""
    gpu: str | int = msgspec.field(default="", name="nvidia.com/gpu")


class ContainerResources(Read, frozen=True, kw_only=True, gc=False):
    """Resources of a container."""

    requests: ResourceLimits | None = None
    limits: ResourceLimits | None = None


class Container(Read, frozen=True, kw_only=True, gc=False):
    """A container of a pod's spec."""

    name: str = ""
    image: str = ""
    resources: ContainerResources | None = None


class Claim(Read, frozen=True, kw_only=True, gc=False):
    """A reference to a claim."""

    claim_name: str = ""


class ImageSource(Read, frozen=True, kw_only=True, gc=False):
    """The image of an image volume."""

    reference: str = ""


class PodVolume(Read, frozen=True, kw_only=True, gc=False):
    """A volume of a pod; only claims and images are read."""

    name: str = ""
    image: ImageSource | None = None
    persistent_volume_claim: Claim | None = None


class Expression(Read, frozen=True, kw_only=True, gc=False):
    """One demand on the labels of a node."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class SelectorTerm(Read, frozen=True, kw_only=True, gc=False):
    """Demands that must all hold."""

    match_expressions: tuple[Expression, ...] | None = None


class NodeSelector(Read, frozen=True, kw_only=True, gc=False):
    """Terms of which one must hold."""

    node_selector_terms: tuple[SelectorTerm, ...] = ()


class NodeAffinity(Read, frozen=True, kw_only=True, gc=False):
    """The node affinity of a pod."""

    required: NodeSelector | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")


class Affinity(Read, frozen=True, kw_only=True, gc=False):
    """The affinity of a pod."""

    node_affinity: NodeAffinity | None = None


class Toleration(Read, frozen=True, kw_only=True, gc=False):
    """A taint that a pod tolerates."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class PodSpec(Read, frozen=True, kw_only=True, gc=False):
    """The part of a pod's spec that explains its state."""

    node_name: str = ""
    service_account_name: str = ""
    subdomain: str = ""
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    containers: tuple[Container, ...] = ()
    volumes: tuple[PodVolume, ...] | None = None
    resource_claims: tuple[PodResourceClaim, ...] | None = None


class KubePod(Read, frozen=True, kw_only=True, gc=False):
    """A pod as the API server sends it."""

    kind: str = ""  # empty in lists
    metadata: PodMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class ListMeta(Read, frozen=True, kw_only=True, gc=False):
    """Metadata of a list: its version and the next page."""

    resource_version: str = ""
    continue_: str | None = msgspec.field(default=None, name="continue")


T = TypeVar("T")


class Listed(Struct, Generic[T], frozen=True, kw_only=True):
    """One page of a list."""

    metadata: ListMeta = ListMeta()
    items: list[T] | None = None


class WatchEvent(Struct, frozen=True, kw_only=True, gc=False):
    """One line of a watch; the object is decoded according to the type."""

    type: str
    object: msgspec.Raw = msgspec.Raw(b"{}")


class SeenMeta(Read, frozen=True, kw_only=True, gc=False):
    """The identity of an object, and its version."""

    uid: str = ""
    resource_version: str = ""


class Seen(Read, frozen=True, kw_only=True, gc=False):
    """The fields of an event of any object."""

    metadata: SeenMeta = SeenMeta()


class StatusError(Read, frozen=True, kw_only=True, gc=False):
    """`Status`, the API server's error document."""

    code: int = 0
    reason: str = ""
    message: str = ""


class NodeMeta(Read, frozen=True, kw_only=True, gc=False):
    """Metadata of a node."""

    name: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class NodeStatus(Read, frozen=True, kw_only=True, gc=False):
    """The status of a node, and its capacity."""

    allocatable: ResourceLimits = ResourceLimits()
    conditions: tuple[PodCondition, ...] | None = None


class Taint(Read, frozen=True, kw_only=True, gc=False):
    """A taint of a node."""

    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class NodeSpec(Read, frozen=True, kw_only=True, gc=False):
    """The spec of a node: whether it accepts pods."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] | None = None


class Node(Read, frozen=True, kw_only=True, gc=False):
    """A node."""

    metadata: NodeMeta = NodeMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def ready(self) -> bool:
        """Whether its kubelet answers; Unknown is no."""
        return any(each.type == "Ready" and each.status == "True" for each in self.status.conditions or ())
