"""Flow matching of action chunks, as pi0 does it (Black 2024): pure functions.

The path from noise to an action is straight: x_t = t noise + (1 - t) action. A model learns its velocity
noise - action, never the action, and an action is what integrating the velocity from t = 1 to 0 leads to.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchyard_trainers.core.device import only_memory
from torchyard_trainers.core.randomness import split_keys, uniform

# t = SCALE u + OFFSET, with u of Beta(ALPHA, 1): more often noise than action, and never exactly an action.
ALPHA, SCALE, OFFSET = 1.5, 0.999, 0.001


class Draws(NamedTuple):
    """Time [m] and noise [m, H, a] of m samples."""

    time: Tensor
    noise: Tensor


def draw(keys: Tensor, horizon: int, size: int) -> Draws:
    """Return time and noise that follow from keys [m] alone, float32."""
    draws = uniform(split_keys(keys, 1 + horizon * size))
    time = draws[:, 0] ** (1 / ALPHA) * SCALE + OFFSET
    return Draws(time, normal(draws[:, 1:]).reshape(-1, horizon, size))


def normal(draws: Tensor) -> Tensor:
    """Convert numbers of `core.randomness.uniform` to a standard normal distribution."""
    return torch.special.ndtri(draws)


def noisy(actions: Tensor, draws: Draws) -> Tensor:
    """Return the points of the paths at the drawn times, [m, H, a]."""
    assert actions.shape == draws.noise.shape, f"{tuple(actions.shape)}, {tuple(draws.noise.shape)}"
    time = draws.time[:, None, None]
    return time * draws.noise + (1 - time) * actions


def flow_loss(velocity: Tensor, actions: Tensor, noise: Tensor) -> Tensor:
    """Return the squared error of each action step, mean over its parts, [m, H]."""
    assert velocity.shape == actions.shape == noise.shape, f"{tuple(velocity.shape)}, {tuple(actions.shape)}"
    return (velocity - (noise - actions)).square().mean(-1)


def integrate(velocity: Callable[[Tensor, float], Tensor], noise: Tensor, steps: int, size: int) -> Tensor:
    """Return the actions that the flow carries noise to, by Euler steps of equal length.

    Args:
        velocity: of points [m, H, a] at a time.
        noise: [m, H, a].
        steps: at least 1.
        size: parts of an action that mean something. The others are 0 in training, so that their path is known.
    """
    points = noise
    for number in range(min(steps, 2) if only_memory() else steps):  # the second beside what the first one left
        time = 1 - number / steps
        points = points - velocity(points, time) / steps
        points = torch.cat([points[..., :size], noise[..., size:] * (1 - (number + 1) / steps)], -1)
    return points[..., :size]
