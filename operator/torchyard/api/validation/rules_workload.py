"""Rules of what a job runs, and of how a built-in workload trains."""

import re
from typing import Any

from torchyard.api import launch
from torchyard.api.launch import HOOKS_ENV, batch_of, workers_per_node
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.spec_workload import EnvVar, Parallelism
from torchyard.api.validation.rules import Rule, one_source

RESERVED_ENV_PREFIXES = ("PET_", "TORCHYARD_", "TORCHELASTIC_", "MASTER_")
"""The only reserved name that a user may set: `0` turns off the counting of steps in programs that report nothing."""
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


def _is_free_name(variable: EnvVar) -> bool:
    name = variable.name
    return name == HOOKS_ENV or (name not in RESERVED_ENV and not name.startswith(RESERVED_ENV_PREFIXES))


def _is_argument_vector(spec: TrainingJobSpec) -> bool:
    return len(spec.command) != 1 or " " not in spec.command[0] or spec.command[0].startswith("/")


_RESERVED_CEL = " || ".join(
    (
        f"self.name in [{', '.join(repr(name) for name in RESERVED_ENV)}]",
        *(f"self.name.startsWith({prefix!r})" for prefix in RESERVED_ENV_PREFIXES),
    )
)


PROGRAM: tuple[Rule, ...] = (
    Rule(
        scope="",
        field="",
        what="exactly one of trainer, command and script is required",
        fix="set one of them, and remove the others",
        holds=lambda spec: (spec.trainer is not None) + bool(spec.command) + (spec.script is not None) == 1,
        cel="(has(self.trainer) ? 1 : 0) + (has(self.command) && size(self.command) > 0 ? 1 : 0)"
        " + (has(self.script) ? 1 : 0) == 1",
        reads=("trainer", "command", "script"),
    ),
    Rule(
        scope="",
        field="args",
        what="there is no command or script that takes arguments",
        fix="set command or script, or use trainer.params for a built-in trainer",
        holds=lambda spec: not spec.args or bool(spec.command) or spec.script is not None,
        cel="!has(self.args) || size(self.args) == 0 || has(self.script)"
        " || (has(self.command) && size(self.command) > 0)",
        reads=("command", "script"),
    ),
    Rule(
        scope="",
        field="launcher.kind",
        what="a built-in trainer needs the agent to report its progress",
        fix="use agent, or set command or script",
        holds=lambda spec: spec.launcher.kind == "agent" or spec.trainer is None,
        cel="self.launcher.kind == 'agent' || !has(self.trainer)",
        reads=("trainer",),
    ),
    Rule(
        scope="",
        field="metrics.totalSteps",
        what="a built-in trainer reports its total number of steps itself",
        fix="remove it; trainer.params sets how long it trains",
        holds=lambda spec: spec.trainer is None or spec.metrics.total_steps is None,
        cel="!has(self.trainer) || !has(self.metrics.totalSteps)",
        reads=("trainer",),
    ),
    Rule(
        scope="",
        field="workingDir",
        what="{value} is a relative path, which needs an agent",
        fix="use an absolute path, or launcher.kind: agent",
        holds=lambda spec: (
            spec.launcher.kind == "agent" or spec.working_dir is None or spec.working_dir.startswith("/")
        ),
        cel="!has(self.workingDir) || self.workingDir.startsWith('/') || self.launcher.kind == 'agent'",
        reads=("launcher",),
    ),
    Rule(
        scope="",
        field="health.stall",
        what="{value} has no effect without an agent, which counts the steps",
        fix="leave it out, or use launcher.kind: agent",
        holds=lambda spec: spec.launcher.kind == "agent" or spec.health.stall.auto,
        cel="self.launcher.kind == 'agent' || self.health.stall == 'auto'",
        reads=("launcher",),
    ),
    Rule(
        scope="",
        field="command",
        what="one string with spaces is not a list of arguments",
        fix="write each argument as a separate item: [torchrun, train.py]",
        holds=_is_argument_vector,
        cel="size(self) != 1 || !self[0].contains(' ') || self[0].startsWith('/')",
        on_field=True,
    ),
    Rule(
        scope="",
        field="command",
        what="--nproc-per-node contradicts procsPerNode, or is not a number of processes",
        fix="set one of them: a number from 1 to 256, or auto or gpu for one process per GPU",
        holds=launch.procs_agree,
        cel=None,
        reads=("args", "procsPerNode", "gpusPerNode", "launcher"),
    ),
    Rule(
        scope="",
        field="command",
        what="--nnodes or --standalone contradicts nodes",
        fix="remove it from the command and set nodes",
        holds=launch.nodes_agree,
        cel=None,
        reads=("args", "nodes", "launcher"),
    ),
    Rule(
        scope="",
        field="command",
        what="--max-restarts has no effect: a restart is a new round of the whole gang",
        fix="remove it from the command and set restart.maxRestarts",
        holds=launch.restarts_are_rounds,
        cel=None,
        reads=("args", "launcher"),
    ),
    Rule(
        scope="",
        field="command",
        what="--rdzv-*, --master-*, --node-rank and --local-addr have no effect: the operator sets them for each round",
        fix="remove them from the command",
        holds=launch.leaves_rendezvous_to_round,
        cel=None,
        reads=("args", "launcher"),
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
        what="exactly one source is required",
        fix="set exactly one of configMap and secret",
        holds=one_source,
        cel="has(self.configMap) != has(self.secret)",
    ),
)


def _micro_fits(parallelism: Parallelism) -> bool:
    micro, whole = parallelism.micro_batch_size, parallelism.global_batch_size
    return isinstance(micro, str) or whole is None or micro <= whole


def _batches_agree(spec: TrainingJobSpec) -> bool:
    return spec.parallelism.global_batch_size in {None, batch_of(spec)}


def _processes_are_known(spec: TrainingJobSpec) -> bool:
    auto = spec.procs_per_node == "auto" and bool(spec.resources.claims)
    return spec.parallelism.batch_per_process is None or not auto


def _batch_is_constant(spec: TrainingJobSpec) -> bool:
    return spec.parallelism.batch_per_process is None or spec.elastic is None


def _part_fits(parallelism: Parallelism) -> bool:
    micro, own = parallelism.micro_batch_size, parallelism.batch_per_process
    return isinstance(micro, str) or own is None or micro <= own


def _has_the_formats(spec: TrainingJobSpec) -> bool:
    if spec.export is None or spec.trainer is None or spec.trainer.name not in {"cvrp", "vecrl"}:
        return True
    return not {"hf", "hf-merged"} & set(spec.export.formats)


def _only_built_in(field: str) -> Rule:
    """Return the rule that rejects what only our trainers do, instead of ignoring it."""
    section, _, name = field.partition(".")

    def holds(spec: TrainingJobSpec) -> bool:
        value: Any = spec
        for part in filter(None, (section, name)):
            value = getattr(value, re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", part))
        return not value or spec.trainer is not None

    unused = f"!self.{field}" if section == "logging" else f"!has(self.{field})"
    return Rule(
        scope="",
        field=field,
        what="only built-in workloads support this",
        fix="set trainer, or remove it",
        holds=holds,
        cel=f"{unused} || has(self.trainer)",
        reads=("trainer",),
    )


TRAINING: tuple[Rule, ...] = (
    Rule(
        scope="",
        field="parallelism.strategy",
        what="strategy single requires exactly one process",
        fix="use auto, ddp or fsdp, or one node with procsPerNode: 1",
        holds=lambda spec: spec.parallelism.strategy != "single" or spec.nodes * workers_per_node(spec) == 1,
        cel="self.parallelism.strategy != 'single' || (self.nodes == 1 && "
        "(type(self.procsPerNode) == string ? self.gpusPerNode <= 1 : self.procsPerNode == 1))",
        reads=("nodes", "procsPerNode", "gpusPerNode"),
    ),
    Rule(
        scope="",
        field="parallelism.strategy",
        what="strategy hsdp shards over the processes of a node, and a node has only one",
        fix="use fsdp, or set gpusPerNode or procsPerNode to 2 or more",
        holds=lambda spec: spec.parallelism.strategy != "hsdp" or workers_per_node(spec) > 1,
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
        field="dynamicShapes",
        what="dynamic shapes affect compiled code only, and make its results depend on the order of the shapes",
        fix="set compile: true and deterministic: false, or remove dynamicShapes",
        holds=lambda parallelism: (
            not parallelism.dynamic_shapes or (parallelism.compile and not parallelism.deterministic)
        ),
        cel="!self.dynamicShapes || (self.compile && !self.deterministic)",
        reads=("compile", "deterministic"),
    ),
    Rule(
        scope="parallelism",
        field="microBatchSize",
        what="{value} is more than globalBatchSize",
        fix="use at most the global batch, or auto",
        holds=_micro_fits,
        cel="type(self.microBatchSize) == string || !has(self.globalBatchSize)"
        " || self.microBatchSize <= self.globalBatchSize",
        reads=("globalBatchSize",),
    ),
    Rule(
        scope="parallelism",
        field="microBatchSize",
        what="{value} is more than batchPerProcess",
        fix="use at most batchPerProcess, or auto",
        holds=_part_fits,
        cel="type(self.microBatchSize) == string || !has(self.batchPerProcess)"
        " || self.microBatchSize <= self.batchPerProcess",
        reads=("batchPerProcess",),
    ),
    Rule(
        scope="",
        field="parallelism.globalBatchSize",
        what="{value} is not batchPerProcess times the processes of the gang",
        fix="leave one of them out, or change nodes, procsPerNode or gpusPerNode so that they agree",
        holds=_batches_agree,
        cel="!has(self.parallelism.globalBatchSize) || !has(self.parallelism.batchPerProcess) || "
        "self.parallelism.globalBatchSize == self.parallelism.batchPerProcess * self.nodes * "
        "(type(self.procsPerNode) == string ? (self.gpusPerNode > 1 ? self.gpusPerNode : 1) : self.procsPerNode)",
        reads=("nodes", "procsPerNode", "gpusPerNode", "parallelism.batchPerProcess"),
    ),
    Rule(
        scope="",
        field="parallelism.batchPerProcess",
        what="the global batch would change with an elastic gang",
        fix="set globalBatchSize instead, or remove elastic",
        holds=_batch_is_constant,
        cel="!has(self.parallelism.batchPerProcess) || !has(self.elastic)",
        reads=("elastic",),
    ),
    Rule(
        scope="",
        field="parallelism.batchPerProcess",
        what="the processes of a pod are not known: they are the GPUs of resources.claims",
        fix="set procsPerNode to their number, or globalBatchSize instead",
        holds=_processes_are_known,
        cel="!has(self.parallelism.batchPerProcess) || type(self.procsPerNode) != string"
        " || !has(self.resources.claims) || size(self.resources.claims) == 0",
        reads=("procsPerNode", "resources.claims"),
    ),
    Rule(
        scope="parallelism",
        field="microBatchTokens",
        what="micro-batches are counted in tokens or in samples, not both",
        fix="leave microBatchSize out",
        holds=lambda parallelism: parallelism.micro_batch_tokens is None or parallelism.micro_batch_size == "auto",
        cel="!has(self.microBatchTokens) || type(self.microBatchSize) == string",
        reads=("microBatchSize",),
    ),
    *(
        _only_built_in(field)
        for field in (
            *("evaluation", "export", "preflight", "checkpoint.resumeFrom", "checkpoint.initFrom"),
            *("logging.wandb", "logging.mlflow"),
        )
    ),
    Rule(
        scope="",
        field="checkpoint.resumeFrom",
        what="this trainer.mode does not read a checkpoint",
        fix="use mode train, eval or export, or leave it out",
        holds=lambda spec: (
            not spec.checkpoint.resume_from or spec.trainer is None or spec.trainer.mode in {"train", "eval", "export"}
        ),
        cel="!has(self.checkpoint.resumeFrom) || !has(self.trainer)"
        " || self.trainer.mode in ['train', 'eval', 'export']",
        reads=("trainer.mode",),
    ),
    Rule(
        scope="",
        field="checkpoint.initFrom",
        what="only mode train starts from weights",
        fix="use mode train, or checkpoint.resumeFrom",
        holds=lambda spec: not spec.checkpoint.init_from or spec.trainer is None or spec.trainer.mode == "train",
        cel="!has(self.checkpoint.initFrom) || !has(self.trainer) || self.trainer.mode == 'train'",
        reads=("trainer.mode",),
    ),
    Rule(
        scope="checkpoint",
        field="initFrom",
        what="a job that resumes from a checkpoint has the weights of that checkpoint",
        fix="set resumeFrom or initFrom, not both",
        holds=lambda checkpoint: not (checkpoint.init_from and checkpoint.resume_from),
        cel="!has(self.initFrom) || !has(self.resumeFrom)",
        reads=("resumeFrom",),
    ),
    Rule(
        scope="",
        field="evaluation",
        what="only mode train evaluates while it trains",
        fix="use mode train, or leave evaluation out",
        holds=lambda spec: spec.evaluation is None or spec.trainer is None or spec.trainer.mode == "train",
        cel="!has(self.evaluation) || !has(self.trainer) || self.trainer.mode == 'train'",
        reads=("trainer.mode",),
    ),
    Rule(
        scope="",
        field="health.stall",
        what="stalls are detected in mode train only",
        fix="use mode train, or leave it out",
        holds=lambda spec: spec.health.stall.auto or spec.trainer is None or spec.trainer.mode == "train",
        cel="self.health.stall == 'auto' || !has(self.trainer) || self.trainer.mode == 'train'",
        reads=("trainer.mode",),
    ),
    Rule(
        scope="",
        field="export",
        what="this trainer.mode does not write a model",
        fix="use mode train or export, or leave export out",
        holds=lambda spec: spec.export is None or spec.trainer is None or spec.trainer.mode in {"train", "export"},
        cel="!has(self.export) || !has(self.trainer) || self.trainer.mode in ['train', 'export']",
        reads=("trainer.mode",),
    ),
    Rule(
        scope="",
        field="export.formats",
        what="hf and hf-merged are for models of transformers, which cvrp and vecrl do not train",
        fix="use safetensors, onnx, pt2 or web",
        holds=_has_the_formats,
        cel="!has(self.export) || !has(self.export.formats) || !has(self.trainer) || "
        "!(self.trainer.name in ['cvrp', 'vecrl']) || !self.export.formats.exists(f, f in ['hf', 'hf-merged'])",
        reads=("trainer",),
    ),
)
