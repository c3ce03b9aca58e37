"""The clipped objective of PPO (Schulman 2017) and estimates of divergences, element by element."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Clipped(NamedTuple):
    """What an action teaches, with gradient, and what is worth a curve. All have the shape of the actions."""

    loss: Tensor
    ratio: Tensor
    approx_kl: Tensor  # of the policy that acted from the one in training
    clipped: Tensor  # float: 1 where the ratio is outside its bounds


def clipped_loss(
    log_probability: Tensor, acted: Tensor, advantage: Tensor, *, low: float, high: float | None = None
) -> Clipped:
    """Return PPO's loss of each action.

    Args:
        log_probability: of the actions under the policy in training.
        acted: the same under the policy that acted, without gradient.
        advantage: of the actions.
        low: the ratio is clipped at 1 - low.
        high: and at 1 + high; default: `low`. A higher one leaves rare actions more space to grow (DAPO, Yu 2025).
    """
    assert log_probability.shape == acted.shape == advantage.shape, (
        f"{tuple(log_probability.shape)}, {tuple(acted.shape)}, {tuple(advantage.shape)}"
    )
    high = low if high is None else high
    log_ratio = log_probability - acted
    ratio = log_ratio.exp()
    bounded = ratio.clamp(1 - low, 1 + high)
    loss = -torch.minimum(ratio * advantage, bounded * advantage)
    with torch.no_grad():
        outside = ((ratio < 1 - low) | (ratio > 1 + high)).float()
        return Clipped(loss, ratio, low_variance_kl(log_ratio), outside)


def low_variance_kl(log_ratio: Tensor) -> Tensor:
    """Return Schulman's estimate of KL(q || p) for samples of q: never negative, and without bias.

    Args:
        log_ratio: log p - log q of each sample.
    """
    return log_ratio.exp() - 1 - log_ratio


def entropy_of(log_probabilities: Tensor) -> Tensor:
    """Return the entropy of distributions [..., choices] that are given by log-probabilities: [...]."""
    return -(log_probabilities.exp() * log_probabilities).sum(-1)


def likelihood_of(log_probabilities: Tensor, action: Tensor) -> Tensor:
    """Pick the actions [...] out of log-probabilities [..., actions].

    The gradient of `gather` adds up in any order, unless it sorts first; here each number is picked once.
    """
    return -F.nll_loss(log_probabilities.flatten(0, -2), action.flatten(), reduction="none").view(action.shape)
