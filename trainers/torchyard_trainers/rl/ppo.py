"""The losses of PPO (Schulman 2017) with a clipped ratio, an unclipped value loss and an entropy bonus."""

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchyard_trainers.core.workload import LossOutput
from torchyard_trainers.rl.clipped import clipped_loss, entropy_of, likelihood_of


class Coefficients(Protocol):
    """The settings of the losses."""

    clip: float
    value_coefficient: float
    entropy_coefficient: float


class ValueHead(nn.Linear):
    """Estimates the expected return from hidden states [..., H]: [..., 1]; 0 at first."""

    def __init__(self, width: int) -> None:
        """Read hidden states of this width."""
        super().__init__(width, 1)

    def reset_parameters(self) -> None:
        """Set the weights to 0."""
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)


class Minibatch(NamedTuple):
    """Samples of a rollout: [m, t, A, ...] for m environments at t of its time steps."""

    observation: Any  # [m, t, A, D], or whatever else the policy reads
    action: Tensor  # [m, t, A] int64
    log_probability: Tensor  # [m, t, A] under the policy that acted
    advantage: Tensor  # [m, t, A] normalised over the whole rollout
    target: Tensor  # [m, t, A] for the value


def losses(logits: Tensor, value: Tensor, batch: Minibatch, weights: Tensor, settings: Coefficients) -> LossOutput:
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
    assert chosen.shape == value.shape == batch.target.shape
    policy = clipped_loss(chosen, batch.log_probability, batch.advantage, low=settings.clip)
    error = 0.5 * (value - batch.target).square()
    entropy = entropy_of(log_probabilities)
    loss = policy.loss + settings.value_coefficient * error - settings.entropy_coefficient * entropy
    with torch.no_grad():
        named = {
            "policyLoss": policy.loss,
            "valueLoss": error,
            "entropy": entropy,
            "approxKl": policy.approx_kl,
            "clipFraction": policy.clipped,
        }
        statistics = {name: _summed(values, weights) for name, values in named.items()}
    return LossOutput(_summed(loss, weights), statistics)


def _summed(values: Tensor, weights: Tensor) -> Tensor:
    """Mean over an environment's samples, weighted sum over environments: [m, t, A] -> []."""
    per_environment = values.flatten(1).mean(1)
    assert per_environment.shape == weights.shape
    return per_environment.dot(weights)
