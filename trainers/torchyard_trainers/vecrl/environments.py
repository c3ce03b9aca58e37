"""The environments there are: ours, those of gymnasium, and classes of the user's."""

import torch

from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.rl.environment import Environment
from torchyard_trainers.rl.gym import open_gymnasium
from torchyard_trainers.rl.outside import (
    MEMBERS,
    METHODS,
    check_shapes,
    class_of,
    make_tensor_environment,
    makes_gymnasium,
)
from torchyard_trainers.rl.spaces import Options
from torchyard_trainers.vecrl.bandit import Bandit
from torchyard_trainers.vecrl.cartpole import CartPole
from torchyard_trainers.vecrl.params import GYMNASIUM_ONLY, Settings, is_class, is_ours
from torchyard_trainers.vecrl.snake import Snake

SMALLEST = 36  # side of a picture, of which the convolutions of DQN leave 1
PAGE = "docs/workloads.md"


def build_environment(settings: Settings, device: torch.device) -> Environment:
    """Make the environment of checked settings.

    Raises:
        ConfigError: one that is not ours does not exist, cannot be used, or does not fit the settings.
    """
    if settings.environment == "cartpole":
        return CartPole()
    if settings.environment == "bandit":
        return Bandit(settings.arms)
    if is_ours(settings.environment):
        return Snake(settings.grid, settings.agents, settings.food, settings.view, device)
    at = f"trainer.params.environment: {settings.environment!r}"
    environment = _outside(settings, at)
    if settings.policies == "independent" and environment.agents == 1:
        raise ConfigError("trainer.params.policies: independent needs several agents, and there is 1; use shared")
    if settings.model != "mlp" and environment.planes is None:
        raise ConfigError(
            f"trainer.params.model: {settings.model} sees pictures, and {settings.environment} has none; use mlp"
        )
    if settings.model == "nature" and environment.planes is not None and min(environment.planes[1:]) < SMALLEST:
        raise ConfigError(
            f"trainer.params.model: nature needs pictures of at least {SMALLEST} x {SMALLEST}, and those of "
            f"{settings.environment} are {environment.planes[1]} x {environment.planes[2]}; use cnn"
        )
    return environment


def _outside(settings: Settings, at: str) -> Environment:
    found = class_of(settings.environment, at) if is_class(settings.environment) else None
    if found is None or makes_gymnasium(found, at):
        if settings.compile:
            raise ConfigError(f"{at} is not made of tensors, so it cannot be compiled; remove parallelism.compile")
        options = Options(
            most_steps=settings.max_episode_steps,
            frame_stack=settings.frame_stack,
            pictures=settings.model != "mlp",
            rescale=settings.action_bounds == "rescale",
            workers=settings.environment_workers,
        )
        return open_gymnasium(settings.environment, found, options, at)
    for name, (field, without) in GYMNASIUM_ONLY.items():
        if (value := getattr(settings, name)) != without:
            raise ConfigError(
                f"trainer.params.{field}: {value}, but {settings.environment} is no environment of gymnasium; remove it"
            )
    if settings.max_episode_steps is not None:
        raise ConfigError(
            f"trainer.params.maxEpisodeSteps: {settings.max_episode_steps}, but {settings.environment} has a limit of "
            "its own; remove it"
        )
    environment: Environment = make_tensor_environment(found, [*MEMBERS, *METHODS], at, PAGE)
    check_shapes(environment, environment.observed, at)
    return environment
