"""Environments of a vision-language policy: images, an instruction, and actions with names."""

import math
from typing import Any, Protocol

from torch import Tensor

from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.rl.environment import Environment, State
from torchyard_trainers.rl.outside import (
    GYMNASIUM,
    METHODS,
    bases_of,
    check_shapes,
    class_of,
    make_tensor_environment,
)
from torchyard_trainers.rl.tabletop import Tabletop
from torchyard_trainers.vlm.params import Settings


class Instructed(Environment, Protocol):
    """An environment of one agent whose observation is an image, and that can be described to a language model."""

    instruction: str  # an imperative: "reach the can"
    action_names: tuple[str, ...]

    def expert(self, state: State) -> Tensor:
        """Return a good action in each of N states, [N, 1] int64; only needed to clone it."""


def build_environment(settings: Settings) -> Instructed:
    """Make the environment of checked settings; it works on the device of its states.

    Raises:
        ConfigError: there is no such class, or it is not an environment with images of the right size.
    """
    if settings.environment == "tabletop":
        kind: Any = settings.task
        return Tabletop(kind, settings.grid, settings.image_size)
    at = f"trainer.params.environment: {settings.environment}"
    found = class_of(settings.environment, f"trainer.params.environment: {settings.environment!r}")
    if GYMNASIUM in bases_of(found):
        raise ConfigError(
            f"{at} is an environment of gymnasium, which vecrl takes; vlm needs one of tensors with images: see "
            "docs/vision-language-rl.md"
        )
    needed = [*METHODS, "draws", "limit", "measure", "actions", "agents", "planes", "instruction", "action_names"]
    needed += ["expert"] if settings.clone_steps else []
    made: Any = make_tensor_environment(lambda: found(settings.image_size), needed, at, "docs/vision-language-rl.md")
    wanted = (3, settings.image_size, settings.image_size)
    if made.planes != wanted or made.agents != 1:
        raise ConfigError(f"{at} has planes {made.planes} and {made.agents} agents; it needs {wanted} and 1")
    if len(made.action_names) != made.actions:
        raise ConfigError(f"{at} has {made.actions} actions, but {len(made.action_names)} action_names")
    check_shapes(made, math.prod(wanted), at)
    return made
