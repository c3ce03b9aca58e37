"""The environments there are."""

import torch

from torchyard_trainers.rl.environment import Environment
from torchyard_trainers.vecrl.bandit import Bandit
from torchyard_trainers.vecrl.cartpole import CartPole
from torchyard_trainers.vecrl.params import Settings
from torchyard_trainers.vecrl.snake import Snake


def build_environment(settings: Settings, device: torch.device) -> Environment:
    """Make the environment of checked settings."""
    if settings.environment == "cartpole":
        return CartPole()
    if settings.environment == "bandit":
        return Bandit(settings.arms)
    return Snake(settings.grid, settings.agents, settings.food, settings.view, device)
