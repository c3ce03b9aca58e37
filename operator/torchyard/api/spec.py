"""The spec of a TrainingJob: what a user may ask for, every field with its unit and meaning.

The models are the single source: defaults, the CRD, `torchyard validate` and the resolved config of a trainer come from them.
Structs are frozen and know no unknown field. Durations are strings (`90s`, `1h30m`), quantities as Kubernetes writes them (`16Gi`).
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

MAX_SCRIPT_BYTES = 256 * 1024
DURATION_PATTERN = r"^([0-9]+h)?([0-9]+m)?([0-9]+s)?$"
QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
ENV_NAME_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
DNS_LABEL_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"

Duration = Annotated[str, Meta(pattern=DURATION_PATTERN, min_length=2, max_length=32)]
Quantity = Annotated[str, Meta(pattern=QUANTITY_PATTERN, min_length=1, max_length=32)]
ObjectName = Annotated[str, Meta(pattern=DNS_LABEL_PATTERN, min_length=1, max_length=63)]
Argument = Annotated[str, Meta(max_length=32768)]


class Model(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel", kw_only=True):
    """Base of every spec section: frozen, camelCase on the wire, no unknown fields."""


def doc(text: str) -> Meta:
    """Describe a field; the text reaches `kubectl explain`."""
    return Meta(description=text)


class Trainer(Model):
    """A workload that comes with TorchYard."""

    name: Annotated[Literal["cvrp", "vecrl", "vlm", "vla", "lm"], doc("Built-in workload.")]
    mode: Annotated[
        Literal["train", "eval", "bench", "export", "preflight"],
        doc("What the workload does; train writes checkpoints."),
    ] = "train"
    params: Annotated[
        dict[str, Any], doc("Parameters of the workload, checked against its own schema by `torchyard validate`.")
    ] = field(default_factory=dict)


class EnvVar(Model):
    """One environment variable of the workers."""

    name: Annotated[
        str,
        Meta(
            pattern=ENV_NAME_PATTERN, max_length=256, description="Name; torchrun's own and TORCHYARD_* are reserved."
        ),
    ]
    value: Annotated[str, Meta(max_length=32768, description="Value, passed verbatim: nothing is expanded.")] = ""


class EnvFrom(Model):
    """Environment variables taken from an object of the same namespace."""

    config_map: Annotated[ObjectName | None, doc("Name of a ConfigMap.")] = None
    secret: Annotated[ObjectName | None, doc("Name of a Secret.")] = None


class Elastic(Model):
    """Bounds of an elastic gang; the global batch stays what the spec says."""

    min_nodes: Annotated[int, Meta(ge=1, le=4096, description="Fewest nodes a round may open with.")]
    max_nodes: Annotated[int, Meta(ge=1, le=4096, description="Most nodes a round may open with.")]


class Launcher(Model):
    """How workers are started inside a pod."""

    kind: Annotated[
        Literal["agent", "none"],
        doc("agent: started, watched and restarted in place; none: PET_* environment and a headless service only."),
    ] = "agent"
    warm_start: Annotated[
        bool, doc("Fork workers from a process that has already imported torch (tens of ms instead of seconds).")
    ] = True


class Gpu(Model):
    """Which GPUs will do."""

    products: Annotated[
        list[Annotated[str, Meta(max_length=63)]],
        Meta(max_length=16, description="Accepted product names, as GPU feature labels spell them."),
    ] = field(default_factory=list)
    min_memory: Annotated[Quantity | None, doc("Least memory of one GPU, for instance 40Gi.")] = None
    min_compute_capability: Annotated[
        Annotated[str, Meta(pattern=r"^[0-9]{1,2}\.[0-9]$")] | None,
        doc("Least CUDA compute capability, for instance 8.0."),
    ] = None
    ids: Annotated[
        list[Annotated[str, Meta(max_length=64)]], Meta(max_length=16, description="GPU UUIDs to use; local runs only.")
    ] = field(default_factory=list)


class Resources(Model):
    """What each pod requests; limits equal requests."""

    cpu: Annotated[Quantity | None, doc("CPU cores a pod, for instance 8 or 500m.")] = None
    memory: Annotated[Quantity | None, doc("Memory a pod, for instance 64Gi.")] = None
    shm: Annotated[Quantity | None, doc("Size of /dev/shm, a memory volume that counts towards memory.")] = None


class Fsdp(Model):
    """Options of fully sharded data parallelism (FSDP2)."""

    sharding: Annotated[
        Literal["full", "grad"],
        doc("full: parameters, gradients and optimizer state; grad: keep parameters gathered after the forward pass."),
    ] = "full"
    reshard_after_forward: Annotated[
        bool, doc("Free gathered parameters after the forward pass: less memory, one more all-gather.")
    ] = True


class Parallelism(Model):
    """AMP, DDP and FSDP as validated settings; they never change the mathematics of a step."""

    strategy: Annotated[
        Literal["auto", "single", "ddp", "fsdp", "hsdp"], doc("auto: single for one process, else ddp.")
    ] = "auto"
    precision: Annotated[
        Literal["auto", "bf16", "fp16", "fp32"],
        doc("auto: bf16 where the GPU has it, fp32 on a CPU. Master weights and reductions are fp32."),
    ] = "auto"
    global_batch_size: Annotated[
        Annotated[int, Meta(ge=1, le=16777216)] | None,
        doc("Samples an optimizer step, over all ranks; a constant of the run. Absent: the workload's preset."),
    ] = None
    micro_batch_size: Annotated[
        Annotated[int, Meta(ge=1, le=16777216)] | Literal["auto"],
        doc("Samples a forward pass on one rank; auto: the largest that divides the work evenly."),
    ] = "auto"
    activation_checkpointing: Annotated[
        Literal["none", "selective", "full"], doc("Recompute activations in the backward pass to save memory.")
    ] = "none"
    cpu_offload: Annotated[bool, doc("Keep parameters and optimizer state in host memory between uses.")] = False
    compile: Annotated[bool, doc("Compile the model with torch.compile.")] = False
    fsdp: Annotated[Fsdp, doc("Options of strategy fsdp.")] = field(default_factory=Fsdp)


class CheckpointInterval(Model):
    """How often a checkpoint is written; give one of the two."""

    steps: Annotated[Annotated[int, Meta(ge=1, le=1000000000)] | None, doc("Optimizer steps between checkpoints.")] = (
        None
    )
    seconds: Annotated[Annotated[int, Meta(ge=1, le=604800)] | None, doc("Seconds between checkpoints.")] = None


class CheckpointVolume(Model):
    """Where checkpoints live; give one of the two."""

    claim: Annotated[ObjectName | None, doc("Name of a PersistentVolumeClaim that every pod of the job can mount.")] = (
        None
    )
    ephemeral: Annotated[
        Quantity | None, doc("Size of a volume that ends with the pod: a lost pod then loses the run.")
    ] = None


class Checkpoint(Model):
    """Checkpoints: where, how often, how many."""

    volume: Annotated[CheckpointVolume | None, doc("Durable volume; local runs use the run's own folder.")] = None
    interval: Annotated[
        CheckpointInterval | None, doc("How often; absent: chosen from the measured cost of a save.")
    ] = None
    keep_last: Annotated[int, Meta(ge=1, le=1000, description="Newest checkpoints that are kept.")] = 3
    keep_best: Annotated[
        int,
        Meta(ge=0, le=1000, description="Best checkpoints, by the workload's headline metric, that are kept as well."),
    ] = 0
    resume_from: Annotated[
        Annotated[str, Meta(max_length=1024)] | None, doc("Path of a checkpoint folder of another run to start from.")
    ] = None
    on_preempt: Annotated[bool, doc("Save before pods are given up (suspend, preemption, Ctrl-C).")] = True


class Backoff(Model):
    """Delay before the next round after a counted failure; it doubles up to `max`."""

    initial: Annotated[Duration, doc("First delay.")] = "1s"
    max: Annotated[Duration, doc("Longest delay.")] = "5m"


class Restart(Model):
    """Restart budget, counted by progress: a round that advanced the checkpoint costs nothing."""

    policy: Annotated[Literal["OnFailure", "Never"], doc("Never: the first failure ends the job.")] = "OnFailure"
    max_restarts: Annotated[
        Annotated[int, Meta(ge=0, le=100000)] | None, doc("Most counted restarts; absent: only the other limits apply.")
    ] = None
    no_progress_limit: Annotated[
        int, Meta(ge=1, le=1000, description="Rounds in a row without progress that end the job.")
    ] = 3
    backoff: Annotated[Backoff, doc("Delay between rounds after failures.")] = field(default_factory=Backoff)


class Health(Model):
    """When a job counts as hung or broken."""

    stall: Annotated[
        Duration | Literal["auto"], doc("Longest time without progress in a phase; auto: learned from the run.")
    ] = "auto"
    start_timeout: Annotated[Duration, doc("Longest time from all pods running to the first step of a round.")] = "15m"
    pending_timeout: Annotated[
        Duration | None, doc("Longest time pods may wait to be scheduled; absent: for ever.")
    ] = None
    non_finite: Annotated[Literal["fail", "skip", "rollback"], doc("What a non-finite loss or gradient norm does.")] = (
        "fail"
    )
    straggler: Annotated[bool, doc("Report ranks whose compute time stays far above the median.")] = False


class Toleration(Model):
    """A taint that pods tolerate, as Kubernetes defines it."""

    key: Annotated[str, Meta(max_length=253, description="Taint key.")] = ""
    operator: Annotated[Literal["Exists", "Equal"], doc("Exists ignores the value.")] = "Equal"
    value: Annotated[str, Meta(max_length=63, description="Taint value.")] = ""
    effect: Annotated[Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"], doc("Empty: all effects.")] = ""


class Topology(Model):
    """How close together the pods of a gang should be."""

    required: Annotated[
        Annotated[str, Meta(max_length=253)] | None, doc("Node label whose value must be the same for all pods.")
    ] = None
    preferred: Annotated[
        Annotated[str, Meta(max_length=253)] | None, doc("Node label whose value should be the same for all pods.")
    ] = None


class Scheduling(Model):
    """How the gang is queued and placed."""

    queue: Annotated[ObjectName | None, doc("Queue of the gang scheduler.")] = None
    gang: Annotated[
        Literal["auto", "native", "kueue", "volcano", "coscheduling", "none"],
        doc("Who places all pods or none; auto: what is installed."),
    ] = "auto"
    priority_class: Annotated[ObjectName | None, doc("PriorityClass of the pods.")] = None
    node_selector: Annotated[dict[str, str], doc("Labels a node must carry.")] = field(default_factory=dict)
    tolerations: Annotated[list[Toleration], Meta(max_length=32, description="Taints the pods tolerate.")] = field(
        default_factory=list
    )
    topology: Annotated[Topology | None, doc("Closeness of the pods.")] = None
    gang_timeout: Annotated[Duration, doc("A gang that is only partly placed is released after this time.")] = "5m"


class Metrics(Model):
    """Metrics of scripts that write no report."""

    patterns: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=512)]],
        Meta(
            max_length=16,
            description="Regular expressions with named groups, matched against each line of standard output: `loss=(?P<loss>[0-9.]+)`.",
        ),
    ] = field(default_factory=list)
    interval: Annotated[Duration, doc("How often metrics are written to the status.")] = "10s"


class Preflight(Model):
    """Checks before the first round."""

    enabled: Annotated[bool, doc("Run versions, GPU, network and storage checks first.")] = True


class Evaluation(Model):
    """Evaluation beside training."""

    every_steps: Annotated[Annotated[int, Meta(ge=1)] | None, doc("Optimizer steps between evaluations.")] = None


class Export(Model):
    """Model formats written when training is done."""

    formats: Annotated[
        list[Literal["safetensors", "onnx", "pt2", "hf", "web"]], Meta(max_length=5, description="Formats to write.")
    ] = field(default_factory=list)
    verify: Annotated[bool, doc("Reload each format and compare it on recorded inputs.")] = True


class Logging(Model):
    """Where curves go besides the status."""

    tensorboard: Annotated[bool, doc("Write TensorBoard event files beside the checkpoints.")] = True
    wandb: Annotated[bool, doc("Log to Weights & Biases.")] = False
    mlflow: Annotated[bool, doc("Log to MLflow.")] = False


class Volume(Model):
    """A volume by name of an object in the job's own namespace; give one source."""

    name: Annotated[ObjectName, doc("Name of the volume.")]
    mount_path: Annotated[str, Meta(pattern=r"^/", max_length=1024, description="Absolute path in the container.")]
    claim: Annotated[ObjectName | None, doc("Name of a PersistentVolumeClaim.")] = None
    config_map: Annotated[ObjectName | None, doc("Name of a ConfigMap.")] = None
    secret: Annotated[ObjectName | None, doc("Name of a Secret.")] = None
    read_only: Annotated[bool, doc("Mount read-only.")] = False


class TrainingJobSpec(Model):
    """What to train, on how many nodes, and what to do when something breaks."""

    trainer: Annotated[Trainer | None, doc("A built-in workload. Give one of trainer, command, script.")] = None
    image: Annotated[
        Annotated[str, Meta(min_length=1, max_length=512)] | None,
        doc("Container image; absent: TorchYard's trainer image. Local runs use this machine instead."),
    ] = None
    command: Annotated[
        list[Argument],
        Meta(
            max_length=256,
            description="Argument vector to start on every node, never a shell string: [torchrun, train.py].",
        ),
    ] = field(default_factory=list)
    args: Annotated[
        list[Argument], Meta(max_length=1024, description="Further arguments, appended to command or script.")
    ] = field(default_factory=list)
    env: Annotated[list[EnvVar], Meta(max_length=256, description="Environment variables of the workers.")] = field(
        default_factory=list
    )
    env_from: Annotated[
        list[EnvFrom], Meta(max_length=16, description="Environment variables from ConfigMaps and Secrets.")
    ] = field(default_factory=list)
    working_dir: Annotated[
        Annotated[str, Meta(max_length=1024)] | None, doc("Working directory; local runs: relative to the job file.")
    ] = None
    script: Annotated[
        Annotated[str, Meta(min_length=1, max_length=MAX_SCRIPT_BYTES)] | None,
        doc("Inline Python source, run with torchrun on every node (at most 256 KiB)."),
    ] = None
    nodes: Annotated[int, Meta(ge=1, le=4096, description="Pods of the gang.")] = 1
    gpus_per_node: Annotated[int, Meta(ge=0, le=64, description="GPUs each pod requests.")] = 0
    procs_per_node: Annotated[
        Annotated[int, Meta(ge=1, le=256)] | Literal["auto"], doc("Worker processes a pod; auto: one a GPU, or one.")
    ] = "auto"
    elastic: Annotated[Elastic | None, doc("Let the gang shrink and grow.")] = None
    launcher: Annotated[Launcher, doc("How workers are started inside a pod.")] = field(default_factory=Launcher)
    preload: Annotated[
        list[Annotated[str, Meta(pattern=r"^[A-Za-z_][\w.]*$", max_length=256)]],
        Meta(max_length=32, description="Modules imported once and kept warm between rounds."),
    ] = field(default_factory=list)
    device: Annotated[Literal["auto", "cuda", "cpu"], doc("cuda never falls back silently to the CPU.")] = "auto"
    gpu: Annotated[Gpu | None, doc("Which GPUs will do.")] = None
    resources: Annotated[Resources, doc("CPU, memory and shared memory of each pod.")] = field(
        default_factory=Resources
    )
    parallelism: Annotated[Parallelism, doc("Strategy, precision and batch sizes.")] = field(
        default_factory=Parallelism
    )
    checkpoint: Annotated[Checkpoint, doc("Where, how often and how many checkpoints.")] = field(
        default_factory=Checkpoint
    )
    restart: Annotated[Restart, doc("What failures cost.")] = field(default_factory=Restart)
    health: Annotated[Health, doc("Time-outs and numeric guards.")] = field(default_factory=Health)
    suspend: Annotated[bool, doc("true: save a checkpoint and give the pods up; false: go on from there.")] = False
    active_deadline: Annotated[
        Duration | None, doc("Longest wall time from the first start, suspends and restarts included.")
    ] = None
    ttl_after_finished: Annotated[
        Duration | None, doc("Delete the job this long after it finished; absent: keep it.")
    ] = None
    grace_period: Annotated[Duration, doc("Time pods get to save and stop.")] = "60s"
    scheduling: Annotated[Scheduling | None, doc("Queue, gang scheduler and placement.")] = None
    metrics: Annotated[Metrics, doc("Metrics of scripts that write no report.")] = field(default_factory=Metrics)
    preflight: Annotated[Preflight | None, doc("Checks before the first round.")] = None
    evaluation: Annotated[Evaluation | None, doc("Evaluation beside training.")] = None
    export: Annotated[Export | None, doc("Model formats written when training is done.")] = None
    logging: Annotated[Logging, doc("Where curves go besides the status.")] = field(default_factory=Logging)
    service_account_name: Annotated[ObjectName | None, doc("Service account of the pods.")] = None
    image_pull_secrets: Annotated[list[ObjectName], Meta(max_length=16, description="Names of image pull secrets.")] = (
        field(default_factory=list)
    )
    volumes: Annotated[list[Volume], Meta(max_length=32, description="Claims, ConfigMaps and Secrets to mount.")] = (
        field(default_factory=list)
    )
