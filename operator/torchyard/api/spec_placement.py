"""Where a gang runs: size bounds, GPUs, resources, scheduling, volumes and inputs."""

from typing import Annotated, Literal

from msgspec import Meta, field

from torchyard.api.names import MAX_NODES
from torchyard.api.values import (
    AbsolutePath,
    ComputeCapability,
    Duration,
    Files,
    InputPath,
    InputSource,
    LabelKey,
    LabelValue,
    Model,
    ObjectName,
    Quantity,
    Reference,
    Sha256,
    TaintKey,
    by_key,
    doc,
)


class Elastic(Model, frozen=True, kw_only=True):
    """A gang that trains with fewer nodes than `nodes`, and grows again; the global batch stays what the spec says.

    `nodes` may change while the job trains, between `minNodes` and `maxNodes`: `kubectl scale tj/NAME --replicas=6`.
    """

    min_nodes: Annotated[int, Meta(ge=1, le=MAX_NODES, description="Fewest nodes with which a round may open.")]
    max_nodes: Annotated[int, Meta(ge=1, le=MAX_NODES, description="Most nodes that the job may be scaled to.")]
    wait: Annotated[Duration, doc("How long a start waits for missing pods, once minNodes of them run.")] = (
        Duration.default("30s")
    )
    patience: Annotated[
        Duration, doc("How long the gang waits after a failure for pods that are missing, before it trains with fewer.")
    ] = Duration.default("60s")
    cooldown: Annotated[
        Duration, doc("How long a round trains before the gang may grow, so that it does not restart all the time.")
    ] = Duration.default("5m")


class Gpu(Model, frozen=True, kw_only=True):
    """Requirements on the GPUs."""

    products: Annotated[
        list[LabelValue],
        Meta(
            max_length=16,
            description="Accepted product names, as in the node labels of NVIDIA's GPU feature discovery.",
        ),
    ] = field(default_factory=list)
    min_memory: Annotated[
        Quantity | None,
        doc("Minimum memory of each GPU, as reported by its driver: an 80 GB GPU has 80G, not 80Gi."),
    ] = None
    min_compute_capability: Annotated[
        ComputeCapability | None,
        doc("Minimum CUDA compute capability, for instance 8.0."),
    ] = None
    ids: Annotated[
        list[Annotated[str, Meta(max_length=64)]], Meta(max_length=16, description="GPU UUIDs to use; local runs only.")
    ] = field(default_factory=list)


class DeviceClaim(Model, frozen=True, kw_only=True):
    """Devices that Kubernetes allocates to each pod (dynamic resource allocation, `resource.k8s.io`)."""

    name: Annotated[ObjectName, doc("Name of the claim in the pod.")]
    template: Annotated[
        Reference,
        doc("Name of a ResourceClaimTemplate; each pod gets a claim of its own, which is deleted with the pod."),
    ]


class Resources(Model, frozen=True, kw_only=True):
    """What each pod requests; limits equal requests."""

    cpu: Annotated[Quantity | None, doc("CPU cores per pod, for instance 8 or 500m.")] = None
    memory: Annotated[Quantity | None, doc("Memory per pod, for instance 64Gi.")] = None
    disk: Annotated[
        Quantity | None,
        doc("Disk space of the node that a pod may use, for instance 50Gi, besides an ephemeral checkpoint volume."),
    ] = None
    shm: Annotated[
        Quantity | None,
        doc("Size of /dev/shm, a memory volume that counts towards memory. By default memory, else what the site has."),
    ] = None
    claims: Annotated[
        list[DeviceClaim],
        Meta(
            max_length=16,
            description="Devices of each pod by ResourceClaimTemplates, beside or instead of gpusPerNode.",
            extra_json_schema=by_key("name"),
        ),
    ] = field(default_factory=list)


class Toleration(Model, frozen=True, kw_only=True):
    """A taint that pods tolerate, as Kubernetes defines it."""

    key: Annotated[TaintKey, doc("Taint key.")] = ""
    operator: Annotated[Literal["Exists", "Equal"], doc("Exists ignores the value.")] = "Equal"
    value: Annotated[LabelValue, doc("Taint value.")] = ""
    effect: Annotated[Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"], doc("Empty: all effects.")] = ""
    toleration_seconds: Annotated[
        Annotated[int, Meta(ge=0, le=604800)] | None,
        doc("How long a pod stays after the taint was added, for effect NoExecute; absent: forever."),
    ] = None


class Topology(Model, frozen=True, kw_only=True):
    """How close together the pods of a gang should be."""

    required: Annotated[LabelKey | None, doc("Node label whose value must be the same for all pods.")] = None
    preferred: Annotated[LabelKey | None, doc("Node label whose value should be the same for all pods.")] = None


class Scheduling(Model, frozen=True, kw_only=True):
    """How the gang is queued and placed."""

    queue: Annotated[ObjectName | None, doc("Queue of a gang scheduler that has queues.")] = None
    gang: Annotated[
        Literal["auto", "native", "kueue", "volcano", "coscheduling", "kai", "none"],
        doc(
            "Gang scheduler, which places all pods or none; auto: the first that the operator may use and the cluster "
            "has, else the operator releases gangs that are only partly placed; none: nothing enforces the gang."
        ),
    ] = "auto"
    priority_class: Annotated[Reference | None, doc("PriorityClass of the pods.")] = None
    workload_priority_class: Annotated[
        Reference | None,
        doc("WorkloadPriorityClass of Kueue: the priority in the queue, apart from that of the pods."),
    ] = None
    node_selector: Annotated[dict[str, LabelValue], Meta(max_length=32, description="Labels that nodes must have.")] = (
        field(default_factory=dict)
    )
    tolerations: Annotated[
        list[Toleration],
        Meta(
            max_length=32,
            description="Taints that the pods tolerate. A pod stays for 30 s on a node that is not ready or "
            "unreachable, unless one of these has the key node.kubernetes.io/not-ready or "
            "node.kubernetes.io/unreachable.",
        ),
    ] = field(default_factory=list)
    topology: Annotated[Topology | None, doc("How close the nodes of the pods must be.")] = None
    gang_timeout: Annotated[
        Duration,
        doc(
            "Time after which a partially scheduled gang is released; up to a quarter is added. Not used by schedulers "
            "that place all pods or none."
        ),
    ] = Duration.default("5m")


class Volume(Model, frozen=True, kw_only=True):
    """A volume by name of an object in the job's own namespace; give one source."""

    name: Annotated[ObjectName, doc("Name of the volume.")]
    mount_path: Annotated[AbsolutePath, doc("Absolute path in the container.")]
    claim: Annotated[Reference | None, doc("Name of a PersistentVolumeClaim.")] = None
    config_map: Annotated[Reference | None, doc("Name of a ConfigMap.")] = None
    secret: Annotated[Reference | None, doc("Name of a Secret.")] = None
    read_only: Annotated[bool, doc("Mount read-only.")] = False


class Input(Model, frozen=True, kw_only=True):
    """Data or a model that each pod has as a folder before the first round."""

    name: Annotated[ObjectName, doc("Name; `${inputs.NAME}` in command, args, env and params is its folder.")]
    source: Annotated[
        InputSource,
        doc(
            "Where it comes from: hf://ORG/NAME@REVISION, hf://datasets/ORG/NAME@REVISION, s3://BUCKET/PREFIX, "
            "gs://BUCKET/PREFIX, https://HOST/FILE with sha256, or claim:NAME/FOLDER, which is mounted read-only."
        ),
    ] = field(name="from")
    path: Annotated[
        InputPath | None,
        doc("Absolute path of the folder in the container, read-only; absent: /torchyard/inputs/NAME."),
    ] = None
    sha256: Annotated[Sha256 | None, doc("SHA-256 of the file of an https:// source.")] = None
    include: Annotated[
        list[Files],
        Meta(
            max_length=8,
            description="Patterns of the files to fetch, such as *.safetensors; * also matches /. Absent: all files.",
        ),
    ] = field(default_factory=list)


class InputCache(Model, frozen=True, kw_only=True):
    """Where fetched inputs and installed requirements are kept."""

    claim: Annotated[
        Reference,
        doc("Name of a claim that all pods can mount: one pod fetches for all, and later jobs find the files."),
    ]
