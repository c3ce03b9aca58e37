"""What a gang scheduler is to the plan: a value whose methods are pure functions of a `Gang`.

A scheduler lists objects that it needs beside the pods, how pods differ, and whether pods may exist now. Nothing here
performs I/O: `kubernetes` discovers, watches and writes the objects, of whatever kind they are.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Protocol

import msgspec
from msgspec import Struct, field

from torchyard.api.reasons import NO_REASON, Reason
from torchyard.api.resource import GROUP, TrainingJob

Manifest = dict[str, Any]
DIGEST = f"{GROUP}/request"  # annotation: digest of what was asked for

Pods = Literal["create", "keep", "stop"]
"""What may happen to pods: missing ones are created; no pod is created and none stopped; all save and stop."""

GivesBack = Literal["preempted", "suspended", "ended"]
"""Why a gang without live pods gives back what it holds."""


class Kind(Struct, frozen=True):
    """A kind that an API server may serve. `group` is empty for the core group."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """`group/version`, or the version alone for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "") -> str:
        """Path of the collection in a namespace; empty: in all of them."""
        root = f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"
        return f"{root}/namespaces/{namespace}/{self.plural}" if namespace else f"{root}/{self.plural}"


class Right(Struct, frozen=True):
    """What the operator must be allowed to do; `everywhere`: on a resource of the cluster, not of a namespace."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    everywhere: bool = False


class Source(Struct, frozen=True):
    """Objects of the cluster that a scheduler reads and that belong to no job, for instance nodes.

    `fields`: paths of what is kept of each; other fields change too often and are large. Of a namespaced kind, a
    scheduler reads those in the namespace of the job. `optional`: the scheduler works where the API server does not
    serve the kind.
    """

    kind: Kind
    fields: tuple[str, ...]
    optional: bool = False


class GangObject(Struct, frozen=True, kw_only=True):
    """An object of a scheduler as it is in the cache."""

    kind: Kind
    name: str
    uid: str
    version: str = ""  # resourceVersion
    deleting: bool = False
    document: Manifest = field(default_factory=dict)

    def at(self, *path: str) -> Any:
        """Return the value at a path of the document; None if the path does not exist."""
        value: Any = self.document
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    def condition(self, kind: str) -> "ObjectCondition":
        """Return the condition of a type; an empty one if it is not set."""
        listed = self.at("status", "conditions")
        for each in listed if isinstance(listed, list) else ():
            if isinstance(each, dict) and each.get("type") == kind:
                return ObjectCondition(*(str(each.get(name) or "") for name in ("status", "reason", "message")))
        return ObjectCondition()


class ObjectCondition(Struct, frozen=True):
    """A condition of an object; `status` is empty if it is not set."""

    status: str = ""
    reason: str = ""
    message: str = ""

    @property
    def holds(self) -> bool:
        """Whether the condition is true."""
        return self.status == "True"


class CreateObject(Struct, frozen=True, kw_only=True, tag=True, tag_field="action"):
    """Create an object that the job controls; one of that name that the job controls is success."""

    kind: Kind
    name: str
    manifest: Manifest


class PatchObject(Struct, frozen=True, kw_only=True, tag=True, tag_field="action"):
    """Change an object by a JSON merge patch, with its uid as precondition.

    `version`: a further precondition, for patches that replace a list; empty: none. `subresource`: empty or `status`.
    """

    kind: Kind
    name: str
    uid: str
    patch: Manifest
    why: str
    version: str = ""
    subresource: Literal["", "status"] = ""


class DeleteObject(Struct, frozen=True, kw_only=True, tag=True, tag_field="action"):
    """Delete an object, with its uid as precondition; one that is gone is success."""

    kind: Kind
    name: str
    uid: str
    why: str


Change = CreateObject | PatchObject | DeleteObject


class PodChanges(Struct, frozen=True, kw_only=True):
    """How the pods of a gang differ from those without a gang scheduler."""

    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: tuple[Manifest, ...] = ()
    spec: Manifest = field(default_factory=dict)  # further fields of the pod's spec


class Admission(Struct, frozen=True, kw_only=True):
    """Whether pods may exist, and why not.

    `admitted`: whether the gang has what it asked for; None: when all pods have a node. `message`: one sentence for
    `status.gang`. `reason` and `evidence`: of the waiting job, if pods may not be created. `size`: how many pods of an
    elastic gang may exist, spares included; None: as many as the job asks for. `again`: when to ask the scheduler
    again, unix seconds, if nothing happens before; None: at the next resync.
    """

    pods: Pods = "create"
    admitted: bool | None = None
    message: str = ""
    reason: Reason = NO_REASON
    evidence: str = ""
    size: int | None = None
    again: float | None = None


class QueuePosition(Struct, frozen=True, kw_only=True):
    """The place of a job in its queue.

    `position`: 1 is the next. `uncounted`: Workloads ahead that are not TrainingJobs. `start`: when the job may start,
    if running jobs end as they forecast, unix seconds; None: forecasts do not tell.
    """

    position: int
    uncounted: int = 0
    start: float | None = None


class Request(Struct, frozen=True, kw_only=True):
    """The scheduler of a job, and what is known of its objects.

    Attributes:
        name: of the scheduler that the job has or waits for; empty: a machine, which has none.
        scheduler: the one in force.
        kind: of its objects, in the version that is served; None: it needs none, or it is missing.
        missing: why the scheduler that the job asks for cannot be used; empty: it can.
        reason: of the job that waits because of `missing`.
        known: whether the objects have been listed: until then, their absence proves nothing.
        objects: of the job.
        sources: objects of the cluster, by the plural of their kind.
        template: the pod's labels, resources and placement, as a pod template.
        queue_position: place in the queue; None: the job does not wait in one, or its place is not known.
        queue_condition: whether the queue of queues is active, as it was last read; empty: it is not known.
    """

    name: str
    scheduler: "Scheduler"
    kind: Kind | None = None
    missing: str = ""
    reason: Reason = Reason.SCHEDULER_UNAVAILABLE
    known: bool = True
    objects: tuple[GangObject, ...] = ()
    sources: Mapping[str, tuple[GangObject, ...]] = field(default_factory=dict)
    template: Manifest = field(default_factory=dict)
    queue_position: QueuePosition | None = None
    queue_condition: ObjectCondition = ObjectCondition()


class Gang(Struct, frozen=True, kw_only=True):
    """Everything that a scheduler may know: the job, its request, and what the plan knows of its pods."""

    job: TrainingJob
    request: Request
    now: float = 0.0
    """Unix seconds."""
    live_pods: int = 0
    """Pods whose processes may still run."""
    unplaced: bool = False
    """Whether a pod waits for a node."""

    @property
    def pods_live(self) -> bool:
        """Whether processes of a pod may still run."""
        return self.live_pods > 0

    @property
    def name(self) -> str:
        """Name of the job's object: no other job has it, not even a later one of the same name."""
        return object_name(self.job)

    @property
    def object(self) -> GangObject | None:
        """The job's object; None: it does not exist, or is not known yet."""
        return next((each for each in self.request.objects if each.name == self.name), None)


class Scheduler(Protocol):
    """A gang scheduler. All methods are pure.

    Attributes:
        name: in `spec.scheduling.gang` and `status.gang.enforcedBy`.
        kinds: of its object, the preferred version first; none: it needs no objects.
        sources: further objects that it reads.
        rights: what the operator needs beside its rights on jobs and pods.
        places_together: places all pods or none, so that the operator need not release a partly placed gang.
        queues: whether a queue is required, may be named, or does not exist.
        queue_kind: of its queues, among `sources`; None: which queues exist is not known.
    """

    name: ClassVar[str]
    kinds: ClassVar[tuple[Kind, ...]]
    sources: ClassVar[tuple[Source, ...]]
    rights: ClassVar[tuple[Right, ...]]
    places_together: ClassVar[bool]
    queues: ClassVar[Literal["required", "optional", "none"]]
    queue_kind: ClassVar[Kind | None]

    def ask(self, gang: Gang) -> tuple[Change, ...]:
        """Return what to create or change so that the scheduler knows the gang as it is now."""
        ...

    def admission(self, gang: Gang) -> Admission:
        """Return whether pods may exist now."""
        ...

    def pods(self, gang: Gang) -> PodChanges:
        """Return how the pods that are created now differ."""
        ...

    def give_back(self, gang: Gang, why: GivesBack) -> tuple[Change, ...]:
        """Return what ends the request of a gang that has no live pods any more."""
        ...


def object_name(job: TrainingJob) -> str:
    """Return the name of the job's object: with a part of the uid, so that a later job of the name has another one."""
    return f"{job.metadata.name}-{job.metadata.uid[:8]}"


def create(
    gang: Gang,
    kind: Kind,
    spec: Manifest,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    *,
    name: str = "",
) -> CreateObject:
    """Return the action that creates an object of the job; `kubernetes` adds namespace, owner and labels of the job.

    Args:
        gang: of the job.
        kind: of the object.
        spec: of the object; its digest becomes an annotation, unless `annotations` have one.
        labels: further labels.
        annotations: further annotations.
        name: its name; empty: that of the job's only object.
    """
    metadata: Manifest = {
        "name": name or gang.name,
        "annotations": {DIGEST: digest(spec), **(annotations or {})},
        "labels": dict(labels or {}),
    }
    manifest = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec}
    return CreateObject(kind=kind, name=metadata["name"], manifest=manifest)


def ensure(
    gang: Gang,
    spec: Manifest,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> tuple[Change, ...]:
    """Create the object of the gang, or replace it if it asks for another gang and no pod depends on it."""
    kind, there = gang.request.kind, gang.object
    if kind is None or not gang.request.known:
        return ()
    if there is None:
        return (create(gang, kind, spec, labels, annotations),)
    outdated = there.at("metadata", "annotations", DIGEST) != digest(spec)
    if outdated and not gang.pods_live and not there.deleting:
        return (DeleteObject(kind=kind, name=there.name, uid=there.uid, why="it asks for another gang"),)
    return ()


def is_asked(gang: Gang, spec: Manifest) -> bool:
    """Return whether the object exists and asks for this gang, or for the one that its live pods belong to."""
    there = gang.object
    if there is None or there.deleting:
        return False
    return gang.pods_live or there.at("metadata", "annotations", DIGEST) == digest(spec)


def delete(gang: Gang, why: str) -> tuple[Change, ...]:
    """Delete the object of the gang, if it exists."""
    there = gang.object
    if there is None or there.deleting:
        return ()
    return (DeleteObject(kind=there.kind, name=there.name, uid=there.uid, why=why),)


def digest(spec: Manifest) -> str:
    """Return a digest of what is asked for."""
    return hashlib.sha256(msgspec.json.encode(spec, order="sorted")).hexdigest()[:16]
