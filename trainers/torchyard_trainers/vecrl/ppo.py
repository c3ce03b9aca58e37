"""The losses of PPO (Schulman 2017) with a clipped ratio, an unclipped value loss and an entropy bonus."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from torchyard_trainers.core.workload import LossOutput
from torchyard_trainers.vecrl.params import Settings


class Minibatch(NamedTuple):
    """Samples of a rollout: [m, t, A, ...] for m environments at t of its time steps."""

    observation: Tensor  # [m, t, A, D]
    action: Tensor  # [m, t, A] int64
    log_probability: Tensor  # [m, t, A] under the policy that acted
    advantage: Tensor  # [m, t, A] normalised over the whole rollout
    target: Tensor  # [m, t, A] for the value


def losses(logits: Tensor, value: Tensor, batch: Minibatch, weights: Tensor, settings: Settings) -> LossOutput:
    """Return the sum over environments of the mean loss of their samples, and the statistics in the same form.

    Args:
        logits: [m, t, A, actions] of the policy in training.
        value: [m, t, A].
        batch: the samples.
        weights: [m], 0 for padding.
        settings: of the run.
    """
    log_probabilities = F.log_softmax(logits, -1)
    chosen = likelihood_of(log_probabilities, batch.action)
    log_ratio = chosen - batch.log_probability
    ratio = log_ratio.exp()
    assert ratio.shape == batch.advantage.shape == value.shape == batch.target.shape
    clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
    gain = torch.minimum(ratio * batch.advantage, clipped * batch.advantage)
    error = 0.5 * (value - batch.target).square()
    entropy = -(log_probabilities.exp() * log_probabilities).sum(-1)
    loss = -gain + settings.value_coefficient * error - settings.entropy_coefficient * entropy
    with torch.no_grad():
        named = {
            "policyLoss": -gain,
            "valueLoss": error,
            "entropy": entropy,
            "approxKl": ratio - 1 - log_ratio,  # Schulman's low-variance estimate
            "clipFraction": ((ratio - 1).abs() > settings.clip).float(),
        }
        statistics = {name: _summed(values, weights) for name, values in named.items()}
    return LossOutput(_summed(loss, weights), statistics)


def likelihood_of(log_probabilities: Tensor, action: Tensor) -> Tensor:
    """Pick the actions [...] out of log-probabilities [..., actions].

    The gradient of `gather` adds up in any order, unless it sorts first; here each number is picked once.
    """
    return -F.nll_loss(log_probabilities.flatten(0, -2), action.flatten(), reduction="none").view(action.shape)


def _summed(values: Tensor, weights: Tensor) -> Tensor:
    """Mean over an environment's samples, weighted sum over environments: [m, t, A] -> []."""
    per_environment = values.flatten(1).mean(1)
    assert per_environment.shape == weights.shape
    return per_environment.dot(weights)
