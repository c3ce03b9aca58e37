"""The built-in workloads by name. Nothing heavy is imported before a workload is chosen."""

import json
from typing import Any

from torchyard_trainers.core.config import Config
from torchyard_trainers.core.exits import ConfigError

KNOWN = ("cvrp", "vecrl", "vlm", "vla", "lm")
MODES = ("train", "eval")


def check(config: Config) -> None:
    """Refuse trainers and modes that do not exist here.

    Raises:
        ConfigError: naming what exists.
    """
    require(config.trainer.name)
    if config.trainer.mode not in MODES:
        raise ConfigError(
            f"trainer.mode: {config.trainer.mode} is not implemented in this version; use one of {', '.join(MODES)}"
        )


def build(config: Config) -> Any:
    """Give the workload that a checked config asks for (a `core.workload.Workload`)."""
    from torchyard_trainers.cvrp import params
    from torchyard_trainers.cvrp.task import Cvrp

    return Cvrp(params.settle(params.read(config.trainer.params), config.parallelism))


def schema(name: str) -> str:
    """Give the JSON Schema of a workload's params as text, torch-free."""
    require(name)
    import msgspec

    from torchyard_trainers.cvrp.params import Params

    tree = {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(Params)}
    return json.dumps(tree, indent=2) + "\n"


def require(name: str) -> None:
    """Refuse an unknown workload."""
    if name == "cvrp":
        return
    if name in KNOWN:
        raise ConfigError(f"trainer.name: {name} is not implemented in this version; use cvrp")
    raise ConfigError(f"trainer.name: {name!r} is unknown; use cvrp")
