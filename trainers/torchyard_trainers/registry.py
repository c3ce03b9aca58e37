"""Workloads by name: the built-in ones, and `MODULE:CLASS` of a program's own.

Nothing heavy is imported before a workload is chosen.
"""

import json
from importlib import import_module
from typing import Any

from torchyard_trainers.core.config import Config
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.metrics.trackers import check_trackers

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
    module = _params(name)
    if ":" in name:
        work = _made_outside(module, config)
    else:
        work = _built_in(name)(module.settle(config.trainer.params, config.parallelism))
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
    module, _, kind = name.partition(":")
    if module and kind:
        return
    if name in KNOWN:
        raise ConfigError(f"trainer.name: {name} is not implemented in this version; use {_EITHER}")
    raise ConfigError(f"trainer.name: {name!r} is unknown; use {_EITHER}, or MODULE:CLASS for a workload of your own")


def _params(name: str) -> Any:
    """Give the module that a workload's parameters are in; without torch, if it is a built-in one."""
    require(name)
    return _outside(name) if ":" in name else import_module(f"torchyard_trainers.{name}.params")


def _built_in(name: str) -> Any:
    return getattr(import_module(f"torchyard_trainers.{name}.task"), WORKLOADS[name])


def _outside(name: str) -> Any:
    """Import MODULE of `MODULE:CLASS`.

    Raises:
        ConfigError: it is not there, or lacks CLASS or `settle`.
    """
    path, _, kind = name.partition(":")
    try:
        module = import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{path}.".startswith(f"{error.name}."):
            raise  # it is there, and what it imports is not
        where = "start the job in its folder (workingDir), or name that in PYTHONPATH"
        raise ConfigError(f"trainer.name: {name!r}, but there is no module {error.name!r}; {where}") from error
    lacking = [each for each in (kind, "settle") if not callable(getattr(module, each, None))]
    if lacking:
        raise ConfigError(
            f"trainer.name: {name!r}, but {path} has no {' and no '.join(lacking)}; it needs the class and "
            "settle(params, parallelism), which gives what the class is made from"
        )
    return module


def _made_outside(module: Any, config: Config) -> Any:
    from torchyard_trainers.core.held import check_asked, held

    name = config.trainer.name
    try:
        settings = module.settle(config.trainer.params, config.parallelism)
    except ConfigError:
        raise
    except (TypeError, ValueError) as error:  # what dataclasses, msgspec, pydantic and people refuse with
        raise ConfigError(f"trainer.params: {error}") from error
    kind = getattr(module, name.partition(":")[2])
    work = held(kind, settings, name)
    check_asked(kind, config)
    wanted = config.parallelism.global_batch_size
    if wanted not in (None, work.global_batch):
        raise ConfigError(
            f"parallelism.globalBatchSize: {wanted}, but the global_batch of {name!r} is {work.global_batch}; leave it "
            "out, or let settle take parallelism.global_batch_size"
        )
    return work
