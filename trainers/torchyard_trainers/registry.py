"""Workloads by name: the built-in ones, and custom ones as `MODULE:CLASS`.

Nothing heavy is imported before a workload is chosen.
"""

import json
from importlib import import_module
from typing import Any

from torchyard_trainers.core.collection import no_collections
from torchyard_trainers.core.config import Config
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.metrics.trackers import check_trackers
from torchyard_trainers.core.parameters import module_of

# The class of each workload in its own folder's task.py.
WORKLOADS = {
    "cvrp": "Cvrp",
    "vecrl": "VecRL",
    "lm": "LanguageModeling",
    "vla": "VisionLanguageAction",
    "vlm": "VisionLanguagePolicy",
}
WITH_TRANSFORMERS = ("lm", "vla", "vlm")  # those that import models of transformers
_EITHER = ", ".join(WORKLOADS)
MODES = ("train", "eval", "bench", "export", "preflight")


def check(config: Config) -> None:
    """Check that the trainer and the mode exist.

    Raises:
        ConfigError: naming the existing ones.
    """
    require(config.trainer.name)
    check_trackers(config)
    if config.trainer.mode not in MODES:
        raise ConfigError(f"trainer.mode: {config.trainer.mode!r} is unknown; use one of {', '.join(MODES)}")


def resolve_params(config: Config) -> None:
    """Check the parameters of a workload, without torch.

    Raises:
        ConfigError: naming the field, the value and the fix.
    """
    _params(config.trainer.name).resolve_params(config.trainer.params, config.parallelism)


def dry_run(config: Config) -> None:
    """Check a job as its first round would, as far as that does not depend on the machine.

    Files, packages, compilers and GPUs are therefore not checked. Only a web page, whose size depends on the model,
    needs torch.

    Raises:
        ConfigError: naming the field, the value and the fix.
    """
    resolve_params(config)
    if config.export is None or "web" not in config.export.formats:
        return
    from torchyard_trainers.core.export import web

    try:
        work = build(config)
    except ConfigError:
        return  # the parameters are correct, so the error is about files
    web.check(work)


def build(config: Config) -> Any:
    """Return the workload of a checked config (a `core.workload.Workload`)."""
    name = config.trainer.name
    module = _params(name)
    if ":" in name:
        work = _made_outside(module, config)
    else:
        work = _built_in(name)(module.resolve_params(config.trainer.params, config.parallelism))
    if config.evaluation is not None and config.evaluation.every_steps is not None:
        work.eval_every = config.evaluation.every_steps
    return work


def schema(name: str) -> str:
    """Return the JSON Schema of a workload's parameters, and the metrics it reports, as text, without torch."""
    import msgspec

    from torchyard_trainers.core.parameters import METRICS

    module = _params(name)
    reported = sorted({*METRICS, *module.METRICS})
    tree = {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(module.Params)}
    tree["x-metrics"] = reported
    conditions: dict[str, tuple[str, str]] = getattr(module, "METRICS_WITH", {})
    tree["x-metrics-with"] = {name: dict([condition]) for name, condition in sorted(conditions.items())}
    return json.dumps(tree, indent=2) + "\n"


def require(name: str) -> None:
    """Raise ConfigError for an unknown workload."""
    if name in WORKLOADS:
        return
    module, _, kind = name.partition(":")
    if module and kind:
        return
    raise ConfigError(f"trainer.name: {name!r} is unknown; use {_EITHER}, or MODULE:CLASS for a workload of your own")


def _params(name: str) -> Any:
    """Return the module of a workload's parameters; does not import torch for a built-in workload."""
    require(name)
    return _outside(name) if ":" in name else import_module(f"torchyard_trainers.{name}.params")


def _built_in(name: str) -> Any:
    with no_collections():
        return getattr(import_module(f"torchyard_trainers.{name}.task"), WORKLOADS[name])


def _outside(name: str) -> Any:
    """Import MODULE of `MODULE:CLASS`.

    Raises:
        ConfigError: it does not exist, or lacks CLASS or `resolve_params`.
    """
    path, _, kind = name.partition(":")
    module = module_of(path, f"trainer.name: {name!r}")
    lacking = [each for each in (kind, "resolve_params") if not callable(getattr(module, each, None))]
    if lacking:
        raise ConfigError(
            f"trainer.name: {name!r}, but {path} has no {' and no '.join(lacking)}; it needs the class and "
            "resolve_params(params, parallelism), whose return value is passed to the class"
        )
    return module


def _made_outside(module: Any, config: Config) -> Any:
    from torchyard_trainers.core.contract import check_asked, checked

    name = config.trainer.name
    try:
        settings = module.resolve_params(config.trainer.params, config.parallelism)
    except ConfigError:
        raise
    except (TypeError, ValueError) as error:  # as dataclasses, msgspec, pydantic and user code raise them
        raise ConfigError(f"trainer.params: {error}") from error
    kind = getattr(module, name.partition(":")[2])
    work = checked(kind, settings, name)
    check_asked(kind, config)
    wanted = config.parallelism.global_batch_size
    if wanted not in (None, work.global_batch):
        raise ConfigError(
            f"parallelism.globalBatchSize: {wanted}, but the global_batch of {name!r} is {work.global_batch}; leave it "
            "out, or let resolve_params take parallelism.global_batch_size"
        )
    return work
