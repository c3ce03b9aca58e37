"""The trainer's configuration: `TORCHYARD_CONFIG` as frozen values, or an error that names field, value and fix."""

import re
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import msgspec.inspect
from msgspec import Meta, Struct, field

from torchyard_trainers.core.exits import ConfigError

T = TypeVar("T")


class Section(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """Base of every section: frozen, camelCase on the wire, no unknown fields."""


class Job(Section):
    """Identity of the job, for logs only."""

    name: str = ""
    namespace: str = ""
    uid: str = ""


class Trainer(Section):
    """Which workload, in which mode, with which parameters."""

    name: str
    mode: str = "train"
    params: dict[str, Any] = field(default_factory=dict)


class Fsdp(Section):
    """Options of strategies `fsdp` and `hsdp`."""

    sharding: Literal["full", "grad"] = "full"
    reshard_after_forward: bool = True

    @property
    def reshards(self) -> bool:
        """Whether a block frees its gathered parameters after the forward pass (ZeRO-3) or keeps them (ZeRO-2)."""
        return self.sharding == "full" and self.reshard_after_forward


class Parallelism(Section):
    """How the work is distributed and computed; none of these settings changes the mathematics of a step."""

    strategy: Literal["auto", "single", "ddp", "fsdp", "hsdp"] = "auto"
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    global_batch_size: Annotated[int, Meta(ge=1)] | None = None
    micro_batch_size: Annotated[int, Meta(ge=1)] | Literal["auto"] = "auto"
    micro_batch_tokens: Annotated[int, Meta(ge=1)] | None = None
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    cpu_offload: bool = False
    memory_fraction: Annotated[float, Meta(gt=0, le=1)] = 1.0
    compile: bool = False
    dynamic_shapes: bool = False
    deterministic: bool = True
    matmul_precision: Literal["highest", "high"] = "highest"
    fsdp: Fsdp = field(default_factory=Fsdp)


class Interval(Section):
    """How often a checkpoint is written; exactly one of the two."""

    steps: Annotated[int, Meta(ge=1)] | None = None
    seconds: Annotated[int, Meta(ge=1)] | None = None


class Checkpoint(Section):
    """When checkpoints are written, how many are kept, and where to start from."""

    interval: Interval | None = None
    keep_last: Annotated[int, Meta(ge=1)] = 3
    keep_best: Annotated[int, Meta(ge=0)] = 0
    resume_from: str | None = None
    init_from: str | None = None
    on_preempt: bool = True


class Health(Section):
    """The policies for non-finite values and spikes, and the stall limit (absent: by the longest time so far)."""

    non_finite: Literal["fail", "skip", "rollback"] = "fail"
    spikes: Literal["ignore", "warn", "rollback"] = "warn"
    stall_seconds: Annotated[float, Meta(gt=0)] | None = None


class Evaluation(Section):
    """How often a training run is evaluated (absent: as the workload's parameters say)."""

    every_steps: Annotated[int, Meta(ge=1)] | None = None


class Export(Section):
    """Formats that are exported at the end of training, or by mode `export`."""

    formats: list[str] = field(default_factory=list)
    verify: bool = True


class Logging(Section):
    """Destinations of curves besides the report."""

    tensorboard: bool = True
    wandb: bool = False
    mlflow: bool = False


class Milestones(Section):
    """A metric that is kept as it was after these percents of all steps."""

    metric: str
    percents: list[Annotated[int, Meta(ge=1, le=99)]]


class Config(Section):
    """The root of the config."""

    trainer: Trainer
    schema: Literal[1] = 1
    job: Job = field(default_factory=Job)
    device: Literal["auto", "cuda", "cpu"] = "auto"
    parallelism: Parallelism = field(default_factory=Parallelism)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    health: Health = field(default_factory=Health)
    logging: Logging = field(default_factory=Logging)
    evaluation: Evaluation | None = None
    export: Export | None = None
    preflight: bool = False
    milestones: Milestones | None = None


def load(path: Path) -> Config:
    """Read and check a config file.

    Raises:
        ConfigError: the file is missing, is not JSON, or holds an unknown field, a bad value or a contradiction.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"TORCHYARD_CONFIG {path}: {error.strerror}; name a readable JSON file") from error
    try:
        tree = msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        raise ConfigError(f"TORCHYARD_CONFIG {path}: not valid JSON ({error})") from error
    config = convert(tree, Config, at="")
    _check_interval(config.checkpoint.interval)
    _check_offload(config.parallelism)
    _check_shapes(config.parallelism)
    return config


def convert(tree: Any, into: type[T], *, at: str) -> T:
    """Turn decoded JSON into a typed value; `at` is where the tree sits in the config, e.g. `trainer.params`.

    Raises:
        ConfigError: naming the field, the value and what is expected.
    """
    try:
        return msgspec.convert(tree, into)
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at `")
        path = where.rstrip("`").removeprefix("$").removeprefix(".")
        full = ".".join(part for part in (at, path) if part) or "config"
        value, fix = _lookup(tree, path), _instead(text, into, path)
        if text.startswith("Invalid enum value"):
            raise ConfigError(f"{full}: {value!r} is not known{fix}") from error
        shown = "" if isinstance(value, dict | list) or value is None else f" (is {value!r})"
        raise ConfigError(f"{full}: {text[0].lower()}{text[1:]}{shown}{fix}") from error


def _check_interval(interval: Interval | None) -> None:
    if interval is not None and (interval.steps is None) == (interval.seconds is None):
        raise ConfigError("checkpoint.interval: set exactly one of steps and seconds")


def _check_offload(parallelism: Parallelism) -> None:
    if parallelism.cpu_offload and parallelism.precision == "fp16":  # its scaler reads gradients on the device
        raise ConfigError("parallelism.cpuOffload: true is incompatible with precision fp16; use bf16 or fp32")


def _check_shapes(parallelism: Parallelism) -> None:
    if parallelism.dynamic_shapes and not parallelism.compile:
        raise ConfigError("parallelism.dynamicShapes: true, but nothing is compiled; set compile: true or remove it")
    if parallelism.dynamic_shapes and parallelism.deterministic:
        raise ConfigError(
            "parallelism.dynamicShapes: true, but compiled code then depends on which shapes came first, so a resumed "
            "run may have other bits; set deterministic: false too, or remove it"
        )


def _instead(text: str, into: Any, path: str) -> str:
    """Return the fix for an unknown field or value: the allowed ones, the closest first."""
    kinds = _kinds(msgspec.inspect.type_info(into))
    for part in path.split(".") if path else ():
        fields = {field.encode_name: field.type for kind in kinds for field in getattr(kind, "fields", ())}
        kinds = _kinds(fields[part]) if part in fields else []
    wrong = re.search(r"unknown field `(.*)`|Invalid enum value '(.*)'", text)
    known = [field.encode_name for kind in kinds for field in getattr(kind, "fields", ())]
    known = known or [str(value) for kind in kinds for value in getattr(kind, "values", ())]
    if wrong is None or not known:
        return ""
    meant = get_close_matches(wrong[1] or wrong[2] or "", known, n=1)
    return f"; did you mean {meant[0]}?" if meant else f"; use {', '.join(known)}"


def _kinds(kind: Any) -> list[Any]:
    """Return the members of a union type; `X | None` counts as X."""
    kind = kind.type if isinstance(kind, msgspec.inspect.Metadata) else kind
    return [each for part in kind.types for each in _kinds(part)] if hasattr(kind, "types") else [kind]


def _lookup(tree: Any, path: str) -> Any:
    for part in path.split("."):
        if not isinstance(tree, dict):
            return None
        tree = tree.get(part)
    return tree
