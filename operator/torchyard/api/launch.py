"""What is started in a pod: the command after the agent's `--`, its environment, and the config of a trainer."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from torchyard.api.codec import resolved
from torchyard.api.resource import TrainingJob
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.spec_reliability import Health
from torchyard.api.torchrun import asked_procs
from torchyard.api.validation.rules_program import HOOKS_ENV
from torchyard.api.validation.rules_training import batch_of

CONFIG_SCHEMA = 1

# Diagnosable NCCL time-outs, stacks on a crash, output that is not lost with the process. Whatever sets one of these
# itself, the spec, the image or a laptop's shell, has its way.
DEFAULT_ENV = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    "PYTHONFAULTHANDLER": "1",
    "PYTHONUNBUFFERED": "1",
}


def worker_command(spec: TrainingJobSpec, script_path: str | None) -> list[str]:
    """Argument vector of the gang's workers.

    Args:
        spec: a valid spec.
        script_path: where `spec.script` was written in the pod; needed exactly then.

    Raises:
        ValueError: there is a script but no path.
    """
    if spec.trainer is not None:
        return ["torchrun", "-m", "torchyard_trainers"]
    if spec.script is not None:
        if script_path is None:
            raise ValueError("spec.script: write it to a file first and give its path")
        return [*torchrun(spec.args), script_path, *spec.args]
    return [*spec.command, *spec.args]


def torchrun(arguments: Sequence[str], *options: str) -> list[str]:
    """Return the head of a torchrun command line whose program gets `arguments`.

    Behind `--` torchrun leaves them alone; without it `--n 5` of the program is an ambiguous option of torchrun's.
    """
    return ["torchrun", *options, *(["--"] if any(word.startswith("-") for word in arguments) else [])]


def trainer_config(job: TrainingJob, checkpoints_of: Callable[[str], str]) -> dict[str, Any]:
    """Return the document behind TORCHYARD_CONFIG (docs/protocol.md), every default filled in.

    Args:
        job: the job.
        checkpoints_of: gives the checkpoint folder of another job, by its name, as the workers see it.
    """
    spec = resolved(job.spec)
    checkpoint = {name: value for name, value in spec["checkpoint"].items() if name != "volume"}
    for field in ("resumeFrom", "initFrom"):
        checkpoint[field] = _place(checkpoint[field], checkpoints_of)
    interval = checkpoint["interval"]
    if interval is not None:
        checkpoint["interval"] = {unit: count for unit, count in interval.items() if count is not None}
    return {
        "schema": CONFIG_SCHEMA,
        "job": {"name": job.metadata.name, "namespace": job.metadata.namespace, "uid": job.metadata.uid},
        "trainer": spec["trainer"],
        "device": spec["device"],
        "parallelism": _parallelism(job.spec, spec["parallelism"]),
        "checkpoint": checkpoint,
        "health": _health(job.spec.health),
        "logging": spec["logging"],
        "evaluation": spec["evaluation"],
        "export": spec["export"],
        "preflight": job.spec.preflight is not None and job.spec.preflight.enabled,
        **({"milestones": spec["metrics"]["milestones"]} if job.spec.metrics.milestones is not None else {}),
    }


def _parallelism(spec: TrainingJobSpec, resolved_values: dict[str, Any]) -> dict[str, Any]:
    """Return the section without the batch of a process: trainers know the global one, and share it."""
    others = {name: value for name, value in resolved_values.items() if name != "batchPerProcess"}
    return others | {"globalBatchSize": batch_of(spec)}


def _health(health: Health) -> dict[str, Any]:
    limit = {} if health.stall.auto else {"stallSeconds": float(health.stall)}
    return {"nonFinite": health.non_finite, **limit}


def _place(wanted: str | None, checkpoints_of: Callable[[str], str]) -> str | None:
    """Turn `cvrp` or `cvrp/best` into a path; a path is one already."""
    if wanted is None or wanted.startswith("/"):
        return wanted
    name, slash, checkpoint = wanted.partition("/")
    return f"{checkpoints_of(name)}{slash}{checkpoint}"


def own_env(spec: TrainingJobSpec) -> dict[str, str]:
    """Variables that the spec itself sets."""
    return {variable.name: variable.value for variable in spec.env}


def agent_env(spec: TrainingJobSpec) -> dict[str, str]:
    """Settings of the agent that come from the spec (docs/protocol.md); identity and addresses are the cluster's."""
    env = {
        "TORCHYARD_PROCS": str(asked_procs(spec)),
        "TORCHYARD_GRACE_SECONDS": f"{spec.grace_period:g}",
        "TORCHYARD_WARM_START": "1" if spec.launcher.warm_start else "0",
    }
    if spec.gpus_per_node:
        env["TORCHYARD_GPUS"] = str(spec.gpus_per_node)
    # A built-in workload says itself what is worth importing once; measured, its rounds then start in a quarter of the
    # time.
    preload = [*(("torchyard_trainers.preload",) if spec.trainer is not None else ()), *spec.preload]
    if preload:
        env["TORCHYARD_PRELOAD"] = ",".join(preload)
    if spec.trainer is not None and spec.trainer.mode == "train":
        env["TORCHYARD_COMPLETION_FILE"] = "DONE"
    if spec.trainer is None and not spec.health.stall.auto:
        # Built-in workloads have a watchdog of their own, which knows what they are doing.
        env["TORCHYARD_STALL_SECONDS"] = f"{spec.health.stall:g}"
    if spec.trainer is None:
        # Built-in workloads write their own curves.
        env["TORCHYARD_CURVES"] = "jsonl,tensorboard" if spec.logging.tensorboard else "jsonl"
    if spec.metrics.patterns:
        env["TORCHYARD_METRIC_PATTERNS"] = json.dumps(spec.metrics.patterns)
    env.update({variable.name: variable.value for variable in spec.env if variable.name == HOOKS_ENV})
    return env
