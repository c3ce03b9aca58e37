"""The built-in workloads by name. Nothing heavy is imported before a workload is chosen."""

import json
from importlib import import_module
from typing import Any

from torchyard_trainers.core.config import Config
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.trackers import check_trackers

# The class of each workload in its own folder's task.py.
WORKLOADS = {"cvrp": "Cvrp", "vecrl": "VecRL"}
KNOWN = (*WORKLOADS, "vlm", "vla", "lm")
_EITHER = " or ".join(WORKLOADS)
MODES = ("train", "eval", "bench", "export", "preflight")


def check(config: Config) -> None:
    """Refuse trainers and modes that do not exist here.

    Raises:
        ConfigError: naming what exists.
    """
    require(config.trainer.name)
    check_trackers(config)
    if config.trainer.mode not in MODES:
        raise ConfigError(f"trainer.mode: {config.trainer.mode!r} is unknown; use one of {', '.join(MODES)}")


def settle(config: Config) -> None:
    """Refuse what a workload will refuse of its parameters, torch-free.

    Raises:
        ConfigError: naming the field, the value and the fix.
    """
    _params(config.trainer.name).settle(config.trainer.params, config.parallelism)


def judge(config: Config) -> None:
    """Refuse what a job would refuse in its first round, as far as that depends on no other machine.

    So its files are not asked for, nor packages, compilers and GPUs. Only a page, whose size is that of the model,
    takes torch to be judged.

    Raises:
        ConfigError: naming the field, the value and the fix.
    """
    settle(config)
    if config.export is None or "web" not in config.export.formats:
        return
    from torchyard_trainers.core.export import web

    try:
        work = build(config)
    except ConfigError:
        return  # its parameters are right, so its files are elsewhere
    web.check(work)


def build(config: Config) -> Any:
    """Give the workload that a checked config asks for (a `core.workload.Workload`)."""
    name = config.trainer.name
    params = _params(name)
    task = getattr(import_module(f"torchyard_trainers.{name}.task"), WORKLOADS[name])
    work = task(params.settle(config.trainer.params, config.parallelism))
    if config.evaluation is not None and config.evaluation.every_steps is not None:
        work.eval_every = config.evaluation.every_steps
    return work


def schema(name: str) -> str:
    """Give the JSON Schema of a workload's params as text, torch-free."""
    import msgspec

    tree = {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(_params(name).Params)}
    return json.dumps(tree, indent=2) + "\n"


def require(name: str) -> None:
    """Refuse an unknown workload."""
    if name in WORKLOADS:
        return
    if name in KNOWN:
        raise ConfigError(f"trainer.name: {name} is not implemented in this version; use {_EITHER}")
    raise ConfigError(f"trainer.name: {name!r} is unknown; use {_EITHER}")


def _params(name: str) -> Any:
    """Give a workload's parameters, a module without torch."""
    require(name)
    return import_module(f"torchyard_trainers.{name}.params")
