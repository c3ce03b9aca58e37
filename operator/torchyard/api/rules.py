"""Rules between fields of the spec: one table, judged here in Python and by the API server in CEL.

A rule holds for a *scope*: the spec (""), a section (`checkpoint.interval`) or each item of a list (`env[]`).
Sections that are absent break no rule. What concerns one field alone (type, range, pattern) is in the models.
"""

import re
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from torchyard.api.durations import seconds
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.spec_placement import Elastic, Toleration, Volume
from torchyard.api.spec_reliability import Backoff, CheckpointInterval, CheckpointVolume, Restart
from torchyard.api.spec_workload import EnvFrom, EnvVar, Parallelism

RESERVED_ENV_PREFIXES = ("PET_", "TORCHYARD_", "TORCHELASTIC_", "MASTER_")
HOOKS_ENV = "TORCHYARD_HOOKS"
"""The one name of ours that a user may set: `0` turns the counting of steps in programs that report nothing off."""
RESERVED_ENV = (
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "NVIDIA_VISIBLE_DEVICES",
    "RANK",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "WORLD_SIZE",
)


OUR_VOLUMES = "torchyard-"
OUR_PATHS = r"^/+(tmp|dev/shm|torchyard(/.*)?)?/*$"


class Rule(Struct, frozen=True, kw_only=True):
    """A rule of one scope.

    `field`: relative to the scope, where the fault is shown. `reads`: further fields it depends on; a rule is not
    judged while one of them is faulty itself. `what` may hold `{value}`, the value of `field`. `cel`: None where CEL
    has no way.
    """

    scope: str
    field: str
    what: str
    fix: str
    holds: Callable[[Any], bool]
    cel: str | None
    reads: tuple[str, ...] = ()


def _is_free_name(variable: EnvVar) -> bool:
    name = variable.name
    return name == HOOKS_ENV or (name not in RESERVED_ENV and not name.startswith(RESERVED_ENV_PREFIXES))


def _procs(spec: TrainingJobSpec) -> int:
    return max(1, spec.gpus_per_node) if isinstance(spec.procs_per_node, str) else spec.procs_per_node


def _micro_fits(parallelism: Parallelism) -> bool:
    micro, whole = parallelism.micro_batch_size, parallelism.global_batch_size
    return isinstance(micro, str) or whole is None or micro <= whole


def _is_argument_vector(spec: TrainingJobSpec) -> bool:
    return len(spec.command) != 1 or " " not in spec.command[0] or spec.command[0].startswith("/")


def _one_source(source: CheckpointVolume | EnvFrom | Volume) -> bool:
    given = (getattr(source, name, None) is not None for name in ("claim", "ephemeral", "config_map", "secret"))
    return sum(given) == 1


def _is_free_path(volume: Volume) -> bool:
    return re.search(OUR_PATHS, volume.mount_path) is None and "/.." not in volume.mount_path


def _mounts_differ(spec: TrainingJobSpec) -> bool:
    paths = [volume.mount_path for volume in spec.volumes]
    return len(paths) == len(set(paths))


def _value_has_a_use(toleration: Toleration) -> bool:
    return toleration.operator != "Exists" or not toleration.value


def _names_a_taint(toleration: Toleration) -> bool:
    return bool(toleration.key) or toleration.operator == "Exists"


def _within(elastic: Elastic) -> bool:
    return elastic.min_nodes <= elastic.max_nodes


def _has_named_group(pattern: str) -> bool:
    try:
        return bool(re.compile(pattern).groupindex)
    except (re.error, OverflowError, RecursionError):
        return False


_RESERVED_CEL = " || ".join(
    (
        f"self.name in [{', '.join(repr(name) for name in RESERVED_ENV)}]",
        *(f"self.name.startsWith({prefix!r})" for prefix in RESERVED_ENV_PREFIXES),
    )
)


def _one_unit(interval: CheckpointInterval) -> bool:
    return (interval.steps is None) != (interval.seconds is None)


def _restarts_are_allowed(restart: Restart) -> bool:
    return restart.policy != "Never" or not restart.max_restarts


def _grows(backoff: Backoff) -> bool:
    return seconds(backoff.initial) <= seconds(backoff.max)


def _positive(scope: str, field: str, attribute: str, *, optional: bool = False, auto: bool = False) -> Rule:
    def holds(section: Any) -> bool:
        value = getattr(section, attribute)
        return value is None or (auto and value == "auto") or seconds(value) > 0

    cel = f"duration(self.{field}) > duration('0s')"
    cel = f"self.{field} == 'auto' || {cel}" if auto else cel
    return Rule(
        scope=scope,
        field=field,
        what="{value} is no time at all",
        fix="give a longer duration" + (", or leave it out" if optional else ""),
        holds=holds,
        cel=f"!has(self.{field}) || {cel}" if optional else cel,
    )


def _has_the_format(spec: TrainingJobSpec) -> bool:
    if spec.export is None or spec.trainer is None:
        return True
    return "hf" not in spec.export.formats or spec.trainer.name in {"vlm", "vla", "lm"}


def _only_built_in(field: str, *, default: str | None = None) -> Rule:
    """What our trainers do and no other program does for us: said, not ignored."""
    section, _, name = field.partition(".")

    def holds(spec: TrainingJobSpec) -> bool:
        value: Any = spec
        for part in filter(None, (section, name)):
            value = getattr(value, re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", part))
        return not value or value == default or spec.trainer is not None

    absent = f"!has(self.{section})" + (f" || !has(self.{field})" if name else "")
    if section == "logging":
        absent += f" || !self.{field}"
    if default is not None:
        absent += f" || self.{field} == '{default}'"
    return Rule(
        scope="",
        field=field,
        what="only built-in workloads do this",
        fix="set trainer, or leave it out",
        holds=holds,
        cel=f"{absent} || has(self.trainer)",
        reads=("trainer",),
    )


_RULES: tuple[Rule, ...] = (
    Rule(
        scope="",
        field="",
        what="it must say what to run, once",
        fix="give exactly one of trainer, command and script",
        holds=lambda spec: (spec.trainer is not None) + bool(spec.command) + (spec.script is not None) == 1,
        cel="(has(self.trainer) ? 1 : 0) + (has(self.command) && size(self.command) > 0 ? 1 : 0)"
        " + (has(self.script) ? 1 : 0) == 1",
        reads=("trainer", "command", "script"),
    ),
    Rule(
        scope="",
        field="args",
        what="nothing takes them",
        fix="give command or script, or put what a trainer needs into trainer.params",
        holds=lambda spec: not spec.args or bool(spec.command) or spec.script is not None,
        cel="!has(self.args) || size(self.args) == 0 || has(self.script)"
        " || (has(self.command) && size(self.command) > 0)",
        reads=("command", "script"),
    ),
    Rule(
        scope="",
        field="launcher.kind",
        what="none leaves a built-in trainer without the agent it reports through",
        fix="use agent, or give command or script",
        holds=lambda spec: spec.launcher.kind == "agent" or spec.trainer is None,
        cel="!has(self.launcher) || !has(self.launcher.kind) || self.launcher.kind == 'agent' || !has(self.trainer)",
        reads=("trainer",),
    ),
    Rule(
        scope="",
        field="workingDir",
        what="{value} is relative, and without an agent there is nothing it is relative to",
        fix="give an absolute path, or use launcher.kind: agent",
        holds=lambda spec: (
            spec.launcher.kind == "agent" or spec.working_dir is None or spec.working_dir.startswith("/")
        ),
        cel="!has(self.launcher) || !has(self.launcher.kind) || self.launcher.kind == 'agent'"
        " || !has(self.workingDir) || self.workingDir.startsWith('/')",
        reads=("launcher",),
    ),
    Rule(
        scope="",
        field="command",
        what="one text that holds spaces is not an argument vector",
        fix="write each argument as an item of its own: [torchrun, train.py]",
        holds=_is_argument_vector,
        cel="!has(self.command) || size(self.command) != 1 || !self.command[0].contains(' ')"
        " || self.command[0].startsWith('/')",
    ),
    Rule(
        scope="env[]",
        field="name",
        what="{value} is reserved",
        fix=f"choose another name; launcher and agent set {', '.join(RESERVED_ENV)} and"
        f" {', '.join(f'{prefix}*' for prefix in RESERVED_ENV_PREFIXES)} except {HOOKS_ENV}",
        holds=_is_free_name,
        cel=f"self.name == {HOOKS_ENV!r} || !({_RESERVED_CEL})",
    ),
    Rule(
        scope="envFrom[]",
        field="",
        what="it needs one source",
        fix="give exactly one of configMap and secret",
        holds=_one_source,
        cel="has(self.configMap) != has(self.secret)",
    ),
    Rule(
        scope="volumes[]",
        field="",
        what="it needs one source",
        fix="give exactly one of claim, configMap and secret",
        holds=_one_source,
        cel="(has(self.claim) ? 1 : 0) + (has(self.configMap) ? 1 : 0) + (has(self.secret) ? 1 : 0) == 1",
    ),
    Rule(
        scope="volumes[]",
        field="name",
        what="{value} is a name of our own volumes",
        fix=f"choose one that does not begin with {OUR_VOLUMES}",
        holds=lambda volume: not volume.name.startswith(OUR_VOLUMES),
        cel=f"!self.name.startsWith({OUR_VOLUMES!r})",
    ),
    Rule(
        scope="volumes[]",
        field="mountPath",
        what="{value} is taken or leaves its folder",
        fix="choose another one; /, /tmp, /dev/shm and /torchyard are taken, .. is not allowed",
        holds=_is_free_path,
        cel=f"!self.mountPath.matches({OUR_PATHS!r}) && !self.mountPath.contains('/..')",
    ),
    Rule(
        scope="",
        field="volumes",
        what="two have the same mountPath",
        fix="mount each in a folder of its own",
        holds=_mounts_differ,
        cel="!has(self.volumes) || self.volumes.all(one,"
        " self.volumes.exists_one(other, other.mountPath == one.mountPath))",
    ),
    Rule(
        scope="scheduling.tolerations[]",
        field="value",
        what="operator Exists compares no value",
        fix="leave value out, or use operator Equal",
        holds=_value_has_a_use,
        cel="self.operator != 'Exists' || self.value == ''",
        reads=("operator",),
    ),
    Rule(
        scope="scheduling.tolerations[]",
        field="key",
        what="it is missing",
        fix="give the key of the taint, or operator Exists for every taint",
        holds=_names_a_taint,
        cel="self.operator == 'Exists' || self.key != ''",
        reads=("operator",),
    ),
    Rule(
        scope="",
        field="gpu",
        what="no GPU is asked for",
        fix="set gpusPerNode, or leave gpu out",
        holds=lambda spec: spec.gpu is None or spec.gpus_per_node > 0,
        cel="!has(self.gpu) || self.gpusPerNode > 0",
        reads=("gpusPerNode",),
    ),
    Rule(
        scope="",
        field="gpusPerNode",
        what="device cpu needs no GPU",
        fix="set gpusPerNode to 0, or device to auto or cuda",
        holds=lambda spec: spec.device != "cpu" or spec.gpus_per_node == 0,
        cel="self.device != 'cpu' || self.gpusPerNode == 0",
        reads=("device",),
    ),
    Rule(
        scope="",
        field="parallelism.strategy",
        what="strategy single is for one process",
        fix="use auto, ddp or fsdp, or one node with procsPerNode: 1",
        holds=lambda spec: spec.parallelism.strategy != "single" or spec.nodes * _procs(spec) == 1,
        cel="self.parallelism.strategy != 'single' || (self.nodes == 1 && "
        "(type(self.procsPerNode) == string ? self.gpusPerNode <= 1 : self.procsPerNode == 1))",
        reads=("nodes", "procsPerNode", "gpusPerNode"),
    ),
    Rule(
        scope="",
        field="parallelism.strategy",
        what="strategy hsdp shards among the processes of a node, and there is one",
        fix="use fsdp, or set gpusPerNode or procsPerNode to 2 or more",
        holds=lambda spec: spec.parallelism.strategy != "hsdp" or _procs(spec) > 1,
        cel="self.parallelism.strategy != 'hsdp' || "
        "(type(self.procsPerNode) == string ? self.gpusPerNode > 1 : self.procsPerNode > 1)",
        reads=("procsPerNode", "gpusPerNode"),
    ),
    Rule(
        scope="parallelism",
        field="cpuOffload",
        what="only sharded parameters can be kept in host memory",
        fix="use strategy fsdp, hsdp or auto",
        holds=lambda parallelism: not parallelism.cpu_offload or parallelism.strategy in {"auto", "fsdp", "hsdp"},
        cel="!self.cpuOffload || self.strategy in ['auto', 'fsdp', 'hsdp']",
        reads=("strategy",),
    ),
    Rule(
        scope="parallelism",
        field="microBatchSize",
        what="{value} is more than globalBatchSize",
        fix="make it a part of the global batch, or auto",
        holds=_micro_fits,
        cel="type(self.microBatchSize) == string || !has(self.globalBatchSize)"
        " || self.microBatchSize <= self.globalBatchSize",
        reads=("globalBatchSize",),
    ),
    *(
        _only_built_in(field)
        for field in ("evaluation", "export", "preflight", "checkpoint.resumeFrom", "logging.wandb", "logging.mlflow")
    ),
    _only_built_in("health.stall", default="auto"),
    Rule(
        scope="",
        field="evaluation",
        what="only training is evaluated at times, and this mode is another one",
        fix="use mode train, or leave evaluation out",
        holds=lambda spec: spec.evaluation is None or spec.trainer is None or spec.trainer.mode == "train",
        cel="!has(self.evaluation) || !has(self.trainer) || self.trainer.mode == 'train'",
        reads=("trainer.mode",),
    ),
    Rule(
        scope="",
        field="export",
        what="this mode of the trainer writes no model",
        fix="use mode train or export, or leave export out",
        holds=lambda spec: spec.export is None or spec.trainer is None or spec.trainer.mode in {"train", "export"},
        cel="!has(self.export) || !has(self.trainer) || self.trainer.mode in ['train', 'export']",
        reads=("trainer.mode",),
    ),
    Rule(
        scope="",
        field="export.formats",
        what="hf is for models of transformers, which this trainer has none of",
        fix="use safetensors, onnx, pt2 or web",
        holds=_has_the_format,
        cel="!has(self.export) || !has(self.export.formats) || !('hf' in self.export.formats) || !has(self.trainer)"
        " || self.trainer.name in ['vlm', 'vla', 'lm']",
        reads=("trainer.name",),
    ),
    Rule(
        scope="elastic",
        field="minNodes",
        what="{value} is more than maxNodes",
        fix="make minNodes at most maxNodes",
        holds=_within,
        cel="self.minNodes <= self.maxNodes",
        reads=("maxNodes",),
    ),
    Rule(
        scope="checkpoint.interval",
        field="",
        what="it needs one unit",
        fix="give exactly one of steps and seconds, or leave interval out",
        holds=_one_unit,
        cel="has(self.steps) != has(self.seconds)",
    ),
    Rule(
        scope="checkpoint.volume",
        field="",
        what="it needs one source",
        fix="give exactly one of claim and ephemeral, or leave volume out",
        holds=_one_source,
        cel="has(self.claim) != has(self.ephemeral)",
    ),
    Rule(
        scope="restart",
        field="maxRestarts",
        what="policy Never allows none",
        fix="leave it out, or use policy OnFailure",
        holds=_restarts_are_allowed,
        cel="self.policy != 'Never' || !has(self.maxRestarts) || self.maxRestarts == 0",
        reads=("policy",),
    ),
    Rule(
        scope="restart.backoff",
        field="initial",
        what="{value} is longer than max",
        fix="make it at most max",
        holds=_grows,
        cel="duration(self.initial) <= duration(self.max)",
        reads=("max",),
    ),
    Rule(
        scope="metrics.patterns[]",
        field="",
        what="{value} is not a regular expression with a named group",
        fix="write one like loss=(?P<loss>[0-9.]+)",
        holds=_has_named_group,
        cel=None,
    ),
)

# A first delay of zero is a delay, a TTL of zero is "at once"; of every other duration zero would mean nothing.
_DURATIONS = (
    _positive("restart.backoff", "max", "max"),
    _positive("health", "startTimeout", "start_timeout"),
    _positive("health", "stall", "stall", auto=True),
    _positive("health", "pendingTimeout", "pending_timeout", optional=True),
    _positive("metrics", "interval", "interval"),
    _positive("", "activeDeadline", "active_deadline", optional=True),
    _positive("", "gracePeriod", "grace_period"),
)
RULES = (*_RULES, *_DURATIONS)
