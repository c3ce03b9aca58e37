"""The spec of a TrainingJob: what a user may ask for, every field with its unit and meaning.

The models are the single source: defaults, the CRD, `torchyard validate` and the config of a trainer come from them.
Structs are frozen and know no unknown field. Durations are strings (`90s`, `1h30m`), quantities as Kubernetes writes
them (`16Gi`).
"""

from typing import Annotated, Literal

from msgspec import Meta, field

from torchyard.api.names import MAX_NODES
from torchyard.api.spec_code import Code
from torchyard.api.spec_placement import Elastic, Gpu, Input, InputCache, Resources, Scheduling, Volume
from torchyard.api.spec_reliability import Checkpoint, Debug, Health, Preflight, Restart
from torchyard.api.spec_workload import (
    EnvFrom,
    EnvVar,
    Evaluation,
    Export,
    Launcher,
    Logging,
    Metrics,
    Parallelism,
    Trainer,
)
from torchyard.api.values import (
    TEXT_PATTERN,
    AnnotationValue,
    Argument,
    ControllerName,
    Duration,
    LabelValue,
    Model,
    Module,
    Reference,
    by_key,
    doc,
)

OPERATOR = "torchyard.dev/operator"
MAX_SCRIPT_BYTES = MAX_TEXTS = 60 * 1024


class TrainingJobSpec(Model, frozen=True, kw_only=True):
    """What to train, on how many nodes, and what to do when something breaks."""

    profile: Annotated[
        Reference | None,
        doc("TrainingProfile of the platform team, which completes this spec and limits it; see status.profile."),
    ] = None
    trainer: Annotated[Trainer | None, doc("A built-in workload. Give one of trainer, command, script.")] = None
    image: Annotated[
        Annotated[str, Meta(min_length=1, max_length=512)] | None,
        doc("Container image; absent: TorchYard's trainer image. Local runs use this machine instead."),
    ] = None
    command: Annotated[
        list[Argument],
        Meta(
            max_length=256,
            description="Command that every node starts, as a list of arguments without a shell: [torchrun, train.py].",
        ),
    ] = field(default_factory=list)
    args: Annotated[
        list[Argument], Meta(max_length=1024, description="Further arguments, appended to command or script.")
    ] = field(default_factory=list)
    env: Annotated[
        list[EnvVar],
        Meta(max_length=256, description="Environment variables of the workers.", extra_json_schema=by_key("name")),
    ] = field(default_factory=list)
    env_from: Annotated[
        list[EnvFrom], Meta(max_length=16, description="Environment variables from ConfigMaps and Secrets.")
    ] = field(default_factory=list)
    working_dir: Annotated[
        Annotated[str, Meta(pattern=TEXT_PATTERN, max_length=1024)] | None,
        doc("Working directory; local runs: relative to the job file."),
    ] = None
    script: Annotated[
        Annotated[str, Meta(pattern=TEXT_PATTERN, min_length=1, max_length=MAX_SCRIPT_BYTES)] | None,
        doc("Inline Python source, run with torchrun on every node (at most 60 KiB)."),
    ] = None
    code: Annotated[Code | None, doc("Code that travels with the job; its folder is the working directory.")] = None
    nodes: Annotated[int, Meta(ge=1, le=MAX_NODES, description="Pods of the gang.")] = 1
    gpus_per_node: Annotated[int, Meta(ge=0, le=64, description="GPUs that each pod requests.")] = 0
    procs_per_node: Annotated[
        Annotated[int, Meta(ge=1, le=256)] | Literal["auto"],
        doc("Worker processes per pod; auto: --nproc-per-node of a torchrun command, else one per GPU, else one."),
    ] = "auto"
    elastic: Annotated[Elastic | None, doc("Train with fewer nodes when some are missing, and grow again.")] = None
    spares: Annotated[
        int,
        Meta(ge=0, le=64, description="Pods beyond the gang that are ready to take the place of a lost one."),
    ] = 0
    launcher: Annotated[Launcher, doc("How workers are started inside a pod.")] = field(default_factory=Launcher)
    preload: Annotated[
        list[Module],
        Meta(max_length=32, description="Modules that are imported once, and not again in each round."),
    ] = field(default_factory=list)
    device: Annotated[
        Literal["auto", "cuda", "cpu"], doc("cuda: a job without a usable GPU fails, and never uses the CPU.")
    ] = "auto"
    gpu: Annotated[Gpu | None, doc("Requirements on the GPUs.")] = None
    resources: Annotated[Resources, doc("CPU, memory and shared memory of each pod.")] = field(
        default_factory=Resources
    )
    parallelism: Annotated[Parallelism, doc("Strategy, precision and batch sizes.")] = field(
        default_factory=Parallelism
    )
    checkpoint: Annotated[Checkpoint, doc("Where, how often and how many checkpoints.")] = field(
        default_factory=Checkpoint
    )
    restart: Annotated[Restart, doc("Which failures restart the job, and how often.")] = field(default_factory=Restart)
    health: Annotated[Health, doc("Timeouts, and the handling of numbers that are not finite.")] = field(
        default_factory=Health
    )
    debug: Annotated[Debug, doc("What stays after a failure, for people to look at.")] = field(default_factory=Debug)
    suspend: Annotated[
        bool, doc("true: save a checkpoint and delete the pods; false: continue from the checkpoint.")
    ] = False
    active_deadline: Annotated[
        Duration | None, doc("Longest wall time from the first start, including suspensions and restarts.")
    ] = None
    ttl_after_finished: Annotated[
        Duration | None,
        doc("Delete the job this long after it has ended; absent: keep it. The next run or ps deletes local runs."),
    ] = None
    grace_period: Annotated[Duration, doc("Time that pods have to save and stop.")] = Duration.default("60s")
    managed_by: Annotated[
        ControllerName | None,
        doc(
            f"Controller that runs the job; absent or {OPERATOR}: this operator. A job of another one, for instance "
            "kueue.x-k8s.io/multikueue, gets neither pods nor a status from this operator."
        ),
    ] = None
    scheduling: Annotated[Scheduling, doc("Queue, gang scheduler and placement.")] = field(default_factory=Scheduling)
    metrics: Annotated[Metrics, doc("Metrics of scripts that write no report.")] = field(default_factory=Metrics)
    preflight: Annotated[Preflight | None, doc("Checks before the first round.")] = None
    evaluation: Annotated[Evaluation | None, doc("Evaluation beside training.")] = None
    export: Annotated[Export | None, doc("Model formats written when training is done.")] = None
    logging: Annotated[Logging, doc("Where metrics are logged, in addition to the status.")] = field(
        default_factory=Logging
    )
    pod_labels: Annotated[dict[str, LabelValue], Meta(max_length=32, description="Additional labels of the pods.")] = (
        field(default_factory=dict)
    )
    pod_annotations: Annotated[
        dict[str, AnnotationValue],
        Meta(max_length=32, description="Additional annotations of the pods."),
    ] = field(default_factory=dict)
    service_account_name: Annotated[Reference | None, doc("Service account of the pods; it needs no rights.")] = None
    image_pull_secrets: Annotated[list[Reference], Meta(max_length=16, description="Names of image pull secrets.")] = (
        field(default_factory=list)
    )
    volumes: Annotated[
        list[Volume],
        Meta(max_length=32, description="Claims, ConfigMaps and Secrets to mount.", extra_json_schema=by_key("name")),
    ] = field(default_factory=list)

    inputs: Annotated[
        list[Input],
        Meta(
            max_length=16,
            description="Data and models that are fetched once, before the first round.",
            extra_json_schema=by_key("name"),
        ),
    ] = field(default_factory=list)
    input_cache: Annotated[
        InputCache | None,
        doc("Where fetched inputs and installed requirements are kept; absent: with each pod, on its disk."),
    ] = None

    @property
    def is_delegated(self) -> bool:
        """Whether another controller runs the job: this operator neither creates pods nor writes a status."""
        return self.managed_by not in {None, OPERATOR}
