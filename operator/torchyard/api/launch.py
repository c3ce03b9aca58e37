"""What is started in a pod: the command after the agent's `--`, its environment, and the config of a trainer.

The options of a torchrun command that decide what the spec decides are honoured, or rejected with the field. The agent
runs such a command through torchrun's own launcher, with the size, the ranks and the rendezvous of the round. Without
an agent torchrun is started as it is written.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from torchyard.api.resource import TrainingJob, resolved
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.spec_reliability import Health
from torchyard.api.values import BUILT_IN, names_code

MASTER_PORT = 29500  # torchrun's own
_PYTHON = re.compile(r"^python(\d+(\.\d+)*)?$")
_PYTHON_FLAGS = re.compile(r"^-[uOEsIBq]+$")
_MODULE = ["-m", "torch.distributed.run"]
_FLAGS = frozenset({"standalone", "module", "no-python", "run-path", "virtual-local-rank", "help"})
_VALUES = frozenset({
    "nnodes", "nproc-per-node", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "max-restarts",
    "monitor-interval", "start-method", "event-log-handler", "role", "log-dir", "redirects", "tee",
    "log-line-prefix-template", "local-ranks-filter", "duplicate-stdout-filters", "duplicate-stderr-filters",
    "node-rank", "master-addr", "master-port", "local-addr", "logs-specs", "numa-binding", "signals-to-handle",
    "shutdown-timeout", "print-completion",
})  # fmt: skip
_SHORT = {"-m": "module", "-r": "redirects", "-t": "tee", "-h": "help"}
_MEETING = re.compile(r"^(rdzv-.*|master-.*|node-rank|local-addr)$")


def is_agentless(spec: TrainingJobSpec) -> bool:
    """Return whether the pods of a job have no agent: they start its program themselves."""
    return spec.launcher.kind == "none"


def fewest_nodes(spec: TrainingJobSpec) -> int:
    """Return the fewest nodes with which a round may open."""
    return spec.nodes if spec.elastic is None else min(spec.elastic.min_nodes, spec.nodes)


def options(spec: TrainingJobSpec) -> Mapping[str, str]:
    """Return the options of a torchrun command by their long names with hyphens; empty for any other program."""
    if spec.launcher.kind != "agent":
        return {}
    words = _torchrun_words([*spec.command, *spec.args] if spec.command else [])
    return {} if words is None else _parsed(words)


def _torchrun_words(command: list[str]) -> list[str] | None:
    """Return the words behind `torchrun` or `python -m torch.distributed.run`; None for any other command."""
    program, *words = command or [""]
    program = program.rpartition("/")[2]
    if _PYTHON.match(program):
        while words and _PYTHON_FLAGS.match(words[0]):
            words.pop(0)
        return words[2:] if words[:2] == _MODULE else None
    return words if program == "torchrun" else None


def is_warm(spec: TrainingJobSpec) -> bool:
    """Return whether workers are forked from a process that has imported torch: torchrun's are, unless switched off."""
    started_by_torchrun = not spec.command or _torchrun_words([*spec.command]) is not None
    return spec.launcher.kind == "agent" and spec.launcher.warm_start and started_by_torchrun


def _parsed(words: list[str]) -> dict[str, str]:
    """Read options up to the script, as argparse does: `--name=value`, `--name value`, and any unambiguous prefix."""
    found: dict[str, str] = {}
    while words and words[0].startswith("-") and words[0] != "--":
        word, equals, value = words.pop(0).partition("=")
        name = _SHORT.get(word) or _long_name(word)
        if name is None:  # one of another torch, whose own parser will judge it
            break
        if name not in _FLAGS and not equals:
            value = words.pop(0) if words else ""
        found[name] = value
    return found


def _long_name(word: str) -> str | None:
    given = word.removeprefix("--").replace("_", "-")
    if not word.startswith("--") or not given:
        return None
    known = [name for name in (*_FLAGS, *_VALUES) if name == given] or [
        name for name in (*_FLAGS, *_VALUES) if name.startswith(given)
    ]
    return known[0] if len(known) == 1 else None


def requested_procs(spec: TrainingJobSpec) -> int | Literal["auto"]:
    """Return the workers of a pod that the spec or its torchrun command asks for."""
    given = options(spec).get("nproc-per-node", "")
    return int(given) if spec.procs_per_node == "auto" and _is_count(given) else spec.procs_per_node


def local_procs(spec: TrainingJobSpec) -> int:
    """Return the workers of a pod; auto is one a GPU, or one."""
    asked = requested_procs(spec)
    return asked if isinstance(asked, int) else max(1, spec.gpus_per_node)


def procs_agree(spec: TrainingJobSpec) -> bool:
    """Return whether `--nproc-per-node` can be honoured beside `procsPerNode`."""
    given = options(spec).get("nproc-per-node")
    if given is None or given in {"auto", "gpu"}:
        return given is None or spec.procs_per_node in {"auto", max(1, spec.gpus_per_node)}
    return _is_count(given) and int(given) <= MAX_PROCS and spec.procs_per_node in {"auto", int(given)}


def nodes_agree(spec: TrainingJobSpec) -> bool:
    """Return whether `--nnodes` is the number of nodes that the spec asks for, and `--standalone` is about one node.

    An elastic gang may have its bounds there.
    """
    found = options(spec)
    most = spec.nodes if spec.elastic is None else spec.elastic.max_nodes
    least, _, largest = found.get("nnodes", str(spec.nodes)).partition(":")
    exact = {least, largest or least} == {str(spec.nodes)}
    bounds = spec.elastic is not None and (least, largest) == (str(spec.elastic.min_nodes), str(most))
    return (exact or bounds) and ("standalone" not in found or most == 1)


def restarts_are_rounds(spec: TrainingJobSpec) -> bool:
    """Return whether torchrun is asked for no restarts."""
    return options(spec).get("max-restarts", "0") == "0"


def leaves_rendezvous_to_round(spec: TrainingJobSpec) -> bool:
    """Return whether the rendezvous is left to the round."""
    return not any(map(_MEETING.match, options(spec)))


MAX_PROCS = 256  # of `procsPerNode`


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and int(text[:9]) > 0


CONFIG_SCHEMA = 1
# Fields with defaults that an older trainer image does not know and would reject: a gang keeps its image when the
# operator is upgraded. They are sent only where they differ.
_LATER = {"dynamicShapes": False, "deterministic": True, "matmulPrecision": "highest"}
HOOKS_ENV = "TORCHYARD_HOOKS"

# Diagnosable NCCL time-outs, stacks on a crash, output that is not lost with the process. A value that the
# spec, the image or a laptop's shell sets wins.
DEFAULT_ENV = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    "PYTHONFAULTHANDLER": "1",
    "PYTHONUNBUFFERED": "1",
}


def imports_own_code(spec: TrainingJobSpec) -> bool:
    """Return whether the workers import modules of the user's: a program, a workload, or a part of a built-in one."""
    trainer = spec.trainer
    if trainer is None or trainer.name not in BUILT_IN or spec.preload:
        return True
    return any(map(names_code, trainer.params.values()))


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
        checkpoint[field] = _checkpoint_path(checkpoint[field], checkpoints_of)
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


def batch_of(spec: TrainingJobSpec) -> int | None:
    """Return the samples of an optimizer step over all ranks that the spec asks for; None: the workload's preset."""
    each = spec.parallelism.batch_per_process
    return spec.parallelism.global_batch_size if each is None else each * spec.nodes * workers_per_node(spec)


def workers_per_node(spec: TrainingJobSpec) -> int:
    """Return how many workers the spec asks for on each node, by its own fields."""
    return max(1, spec.gpus_per_node) if isinstance(spec.procs_per_node, str) else spec.procs_per_node


def _parallelism(spec: TrainingJobSpec, resolved_values: dict[str, Any]) -> dict[str, Any]:
    """Return the section without the batch of a process, since trainers share the global one, and without `_LATER`."""
    others = {name: value for name, value in resolved_values.items() if name != "batchPerProcess"}
    kept = {name: value for name, value in others.items() if name not in _LATER or value != _LATER[name]}
    return kept | {"globalBatchSize": batch_of(spec)}


def _health(health: Health) -> dict[str, Any]:
    limit = {} if health.stall.auto else {"stallSeconds": float(health.stall)}
    spikes = {} if health.spikes == "warn" else {"spikes": health.spikes}  # what earlier images do not know
    return {"nonFinite": health.non_finite, **spikes, **limit}


def _checkpoint_path(wanted: str | None, checkpoints_of: Callable[[str], str]) -> str | None:
    """Turn `cvrp` or `cvrp/best` into a path; a path is one already."""
    if wanted is None or wanted.startswith("/"):
        return wanted
    name, slash, checkpoint = wanted.partition("/")
    return f"{checkpoints_of(name)}{slash}{checkpoint}"


def checkpoint_claim(spec: TrainingJobSpec) -> str | None:
    """Return the claim that checkpoints and exports lie on; None: on a cluster they go with the pods."""
    return spec.checkpoint.volume.claim if spec.checkpoint.volume is not None else None


def own_env(spec: TrainingJobSpec) -> dict[str, str]:
    """Variables that the spec itself sets."""
    return {variable.name: variable.value for variable in spec.env}


def agent_env(spec: TrainingJobSpec) -> dict[str, str]:
    """Settings of the agent that come from the spec (docs/protocol.md); identity and addresses are the cluster's."""
    env = {
        "TORCHYARD_PROCS": str(requested_procs(spec)),
        "TORCHYARD_GRACE_SECONDS": f"{spec.grace_period:g}",
        "TORCHYARD_WARM_START": "1" if spec.launcher.warm_start else "0",
    }
    if spec.gpus_per_node:
        env["TORCHYARD_GPUS"] = str(spec.gpus_per_node)
    # A built-in workload knows what is worth importing once; measured, its rounds then start in a quarter of the
    # time.
    preload = [*(("torchyard_trainers.preload",) if spec.trainer is not None else ()), *spec.preload]
    if preload:
        env["TORCHYARD_PRELOAD"] = ",".join(preload)
    if spec.trainer is not None and spec.trainer.mode == "train":
        env["TORCHYARD_COMPLETION_FILE"] = "DONE"
    if spec.trainer is None and not spec.health.stall.auto:
        # Built-in workloads have their own watchdog, which knows what they are doing.
        env["TORCHYARD_STALL_SECONDS"] = f"{spec.health.stall:g}"
    if spec.trainer is None:
        # Built-in workloads write their own curves.
        env["TORCHYARD_CURVES"] = "jsonl,tensorboard" if spec.logging.tensorboard else "jsonl"
    if spec.debug.keep_failed_pod is not None:
        env["TORCHYARD_KEEP_FILES"] = f"{spec.debug.keep_failed_pod:g}"
    if not spec.health.straggler:
        env["TORCHYARD_PACE"] = "0"
    if spec.metrics.patterns:
        env["TORCHYARD_METRIC_PATTERNS"] = json.dumps(spec.metrics.patterns)
    if spec.metrics.total_steps is not None:
        env["TORCHYARD_TOTAL_STEPS"] = str(spec.metrics.total_steps)
    if spec.trainer is None and (milestones := spec.metrics.milestones) is not None:
        # Built-in workloads keep them themselves, with their checkpoints.
        kept = {"metric": milestones.metric, "percents": milestones.percents}
        env["TORCHYARD_MILESTONES"] = json.dumps(kept)
    env.update({variable.name: variable.value for variable in spec.env if variable.name == HOOKS_ENV})
    return env
