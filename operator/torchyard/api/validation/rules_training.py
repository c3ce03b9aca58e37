"""Rules of how a built-in workload trains, and of what only it does."""

import re
from typing import Any

from torchyard.api.spec import TrainingJobSpec
from torchyard.api.spec_workload import Parallelism
from torchyard.api.validation.rule import Rule


def _procs(spec: TrainingJobSpec) -> int:
    return max(1, spec.gpus_per_node) if isinstance(spec.procs_per_node, str) else spec.procs_per_node


def _micro_fits(parallelism: Parallelism) -> bool:
    micro, whole = parallelism.micro_batch_size, parallelism.global_batch_size
    return isinstance(micro, str) or whole is None or micro <= whole


def batch_of(spec: TrainingJobSpec) -> int | None:
    """Return the samples of an optimizer step over all ranks that the spec asks for; None: the workload's preset."""
    each = spec.parallelism.batch_per_process
    return spec.parallelism.global_batch_size if each is None else each * spec.nodes * _procs(spec)


def _batches_agree(spec: TrainingJobSpec) -> bool:
    return spec.parallelism.global_batch_size in {None, batch_of(spec)}


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
    """What our trainers do and no other program does for us: said, not ignored."""
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
        what="only built-in workloads do this",
        fix="set trainer, or leave it out",
        holds=holds,
        cel=f"{unused} || has(self.trainer)",
        reads=("trainer",),
    )


TRAINING: tuple[Rule, ...] = (
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
    Rule(
        scope="parallelism",
        field="microBatchSize",
        what="{value} is more than batchPerProcess",
        fix="make it a part of what a process takes, or auto",
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
        what="this mode of the trainer reads no checkpoint",
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
        what="only training begins with weights",
        fix="use mode train, or name them in checkpoint.resumeFrom",
        holds=lambda spec: not spec.checkpoint.init_from or spec.trainer is None or spec.trainer.mode == "train",
        cel="!has(self.checkpoint.initFrom) || !has(self.trainer) || self.trainer.mode == 'train'",
        reads=("trainer.mode",),
    ),
    Rule(
        scope="checkpoint",
        field="initFrom",
        what="a job that resumes from a checkpoint has its weights already",
        fix="give resumeFrom or initFrom",
        holds=lambda checkpoint: not (checkpoint.init_from and checkpoint.resume_from),
        cel="!has(self.initFrom) || !has(self.resumeFrom)",
        reads=("resumeFrom",),
    ),
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
        field="health.stall",
        what="only training is watched for standing still, and this mode is another one",
        fix="use mode train, or leave it out",
        holds=lambda spec: spec.health.stall.auto or spec.trainer is None or spec.trainer.mode == "train",
        cel="self.health.stall == 'auto' || !has(self.trainer) || self.trainer.mode == 'train'",
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
        what="hf and hf-merged are for models of transformers, which cvrp and vecrl do not train",
        fix="use safetensors, onnx, pt2 or web",
        holds=_has_the_formats,
        cel="!has(self.export) || !has(self.export.formats) || !has(self.trainer) || "
        "!(self.trainer.name in ['cvrp', 'vecrl']) || !self.export.formats.exists(f, f in ['hf', 'hf-merged'])",
        reads=("trainer",),
    ),
)
