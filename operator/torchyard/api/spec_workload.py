"""What runs in a gang: workload, environment, launcher, parallelism, metrics and what is made of them."""

from typing import Annotated, Literal

from msgspec import Meta, field

from torchyard.api.values import BUILT_IN, Argument, Duration, EnvName, Model, Params, Reference, TrainerName, doc


class Trainer(Model, frozen=True, kw_only=True):
    """A workload that comes with TorchYard, or one of your own on the same core."""

    name: Annotated[TrainerName, doc(f"{', '.join(BUILT_IN)}, or MODULE:CLASS of a workload of your own.")]
    mode: Annotated[
        Literal["train", "eval", "bench", "export", "preflight"],
        doc("What the workload does; only train writes checkpoints."),
    ] = "train"
    params: Annotated[
        Params,
        doc(
            "Parameters of the workload, at most 64 KiB as JSON; those of a built-in one are checked before a pod is "
            "created."
        ),
    ] = field(default_factory=Params)


class EnvVar(Model, frozen=True, kw_only=True):
    """One environment variable of the workers."""

    name: Annotated[EnvName, doc("Name; torchrun's own and TORCHYARD_* except TORCHYARD_HOOKS are reserved.")]
    value: Annotated[Argument, doc("Value, passed unchanged: nothing is expanded.")] = ""


class EnvFrom(Model, frozen=True, kw_only=True):
    """Environment variables taken from an object of the same namespace."""

    config_map: Annotated[Reference | None, doc("Name of a ConfigMap.")] = None
    secret: Annotated[Reference | None, doc("Name of a Secret.")] = None


class Launcher(Model, frozen=True, kw_only=True):
    """How workers are started inside a pod."""

    kind: Annotated[
        Literal["agent", "none"],
        doc("agent: started, watched and restarted in place; none: PET_* environment and a headless service only."),
    ] = "agent"
    warm_start: Annotated[
        bool, doc("Fork workers from a process that has already imported torch (tens of ms instead of seconds).")
    ] = True


class Fsdp(Model, frozen=True, kw_only=True):
    """Options of fully sharded data parallelism (FSDP2)."""

    sharding: Annotated[
        Literal["full", "grad"],
        doc(
            "full: parameters, gradients and optimizer state (ZeRO-3); grad: parameters stay gathered between forward "
            "and backward pass (ZeRO-2), the same as reshardAfterForward: false."
        ),
    ] = "full"
    reshard_after_forward: Annotated[
        bool, doc("Free gathered parameters after the forward pass: less memory, one more all-gather.")
    ] = True


class Parallelism(Model, frozen=True, kw_only=True):
    """AMP, DDP and FSDP as validated settings; they never change the mathematics of a step."""

    strategy: Annotated[
        Literal["auto", "single", "ddp", "fsdp", "hsdp"],
        doc(
            "single: one process; ddp: a whole model on every rank; fsdp: sharded over all ranks; hsdp: sharded inside"
            " a node, replicated across. auto: single for one process, else the first of ddp, hsdp and fsdp that fits."
        ),
    ] = "auto"
    precision: Annotated[
        Literal["auto", "bf16", "fp16", "fp32"],
        doc("auto: bf16 where the GPU has it, fp32 on a CPU. Master weights and reductions are fp32."),
    ] = "auto"
    global_batch_size: Annotated[
        Annotated[int, Meta(ge=1, le=16777216)] | None,
        doc("Samples an optimizer step, over all ranks; a constant of the run. Absent: the workload's preset."),
    ] = None
    batch_per_process: Annotated[
        Annotated[int, Meta(ge=1, le=16777216)] | None,
        doc(
            "Samples an optimizer step of each process: the global batch is this times the processes of the gang, and "
            "grows with them. Absent: the global batch stays what it is, and the processes share it."
        ),
    ] = None
    micro_batch_size: Annotated[
        Annotated[int, Meta(ge=1, le=16777216)] | Literal["auto"],
        doc(
            "Samples a forward pass on one rank; the rest of the global batch is accumulated. auto: the largest that "
            "fits, tried out before the first step and then kept."
        ),
    ] = "auto"
    micro_batch_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=1073741824)] | None,
        doc(
            "Tokens a forward pass on one rank, in place of microBatchSize: the samples of a step are packed by their "
            "lengths, into equally many micro-batches on all ranks. For workloads whose samples differ in length."
        ),
    ] = None
    activation_checkpointing: Annotated[
        Literal["none", "selective", "full"],
        doc(
            "Recompute activations of each block in the backward pass to save memory: selective keeps the results of "
            "matrix products and attention, full keeps a block's inputs only."
        ),
    ] = "none"
    cpu_offload: Annotated[
        bool,
        doc(
            "Keep sharded parameters, gradients and optimizer state in host memory between uses; needs fsdp or hsdp, "
            "which auto then chooses."
        ),
    ] = False
    memory_fraction: Annotated[
        Annotated[float, Meta(ge=0.01, le=1)],
        doc("Part of its GPU's memory, or on a CPU of the pod's, that a worker may use: what auto goes by."),
    ] = 1.0
    compile: Annotated[
        bool, doc("Compile each block of the model with torch.compile; on a GPU also use CUDA graphs.")
    ] = False
    dynamic_shapes: Annotated[
        bool,
        doc(
            "With compile: generate code once for all shapes, for samples of different length. Otherwise PyTorch "
            "compiles each shape, and continues without compiling after eight of them. Needs deterministic: false."
        ),
    ] = False
    deterministic: Annotated[
        bool,
        doc(
            "Only use algorithms that give the same bits each time, so that a resumed run equals one that was not "
            "interrupted; false allows faster ones on GPUs."
        ),
    ] = True
    matmul_precision: Annotated[
        Literal["highest", "high"],
        doc("Products of fp32 matrices on a GPU: highest is fp32, high TensorFloat-32. bf16 is not concerned."),
    ] = "highest"
    fsdp: Annotated[Fsdp, doc("Options of strategy fsdp.")] = field(default_factory=Fsdp)


class Milestones(Model, frozen=True, kw_only=True):
    """Values of one metric that stay in `status.metrics`, under `METRIC@PERCENT%`."""

    metric: Annotated[Annotated[str, Meta(min_length=1, max_length=64)], doc("A metric that the job reports.")]
    percents: Annotated[
        list[Annotated[int, Meta(ge=1, le=99)]],
        Meta(min_length=1, max_length=8, description="Percentages of the job's steps after which its value is kept."),
    ]

    @property
    def names(self) -> dict[int, str]:
        """Names under which the values are reported, by percent."""
        return {percent: f"{self.metric}@{percent}%" for percent in self.percents}


class Metrics(Model, frozen=True, kw_only=True):
    """Metrics of scripts that write no report."""

    patterns: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=256)]],
        Meta(
            max_length=16,
            description="Regular expressions with named groups, matched against each line of output: "
            "`loss=(?P<loss>[0-9.]+)`. Every matching line is a point of the curves in metrics.jsonl. A group must "
            "have a plain number such as 1234.5 or 1.2e-05, or nan or inf, and not a part of a longer one.",
        ),
    ] = field(default_factory=list)
    total_steps: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        doc(
            "Steps of the whole run, of scripts that do not report them: for progress, remaining time and the early "
            "stopping of sweeps. `total_steps` of a pattern or of a report wins."
        ),
    ] = None
    milestones: Annotated[
        Milestones | None, doc("Values to keep in the status. A sweep sets this to compare its trials.")
    ] = None
    interval: Annotated[Duration, doc("How often metrics are written to the status; curves have every point.")] = (
        Duration.default("10s")
    )


class Evaluation(Model, frozen=True, kw_only=True):
    """Evaluation beside training."""

    every_steps: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        doc(
            "Optimizer steps between evaluations, in place of trainer.params.evalEvery; the last step is always "
            "evaluated. The best models by it are what checkpoint.keepBest keeps."
        ),
    ] = None


class Export(Model, frozen=True, kw_only=True):
    """Model formats written when training is done."""

    formats: Annotated[
        list[Literal["safetensors", "onnx", "pt2", "hf", "hf-merged", "web"]],
        Meta(max_length=6, description="Formats to write."),
    ] = field(default_factory=list)
    verify: Annotated[bool, doc("Load each format again and compare its outputs on recorded inputs.")] = True


class Logging(Model, frozen=True, kw_only=True):
    """Where metrics are logged, in addition to the status."""

    tensorboard: Annotated[bool, doc("Write TensorBoard event files into the checkpoint folder.")] = True
    wandb: Annotated[
        bool, doc("Log to Weights & Biases; after a minute without its server, logging stops until the next round.")
    ] = False
    mlflow: Annotated[
        bool, doc("Log to MLflow; after a minute without its server, logging stops until the next round.")
    ] = False
