"""The losses of PPO (Schulman 2017) with a clipped ratio, a value loss, clipped if wanted, and an entropy bonus."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Adam

from torchyard_trainers.core.workload import LossOutput
from torchyard_trainers.rl.clipped import clipped_loss
from torchyard_trainers.rl.distributions import Categorical, Distribution


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


class Halting(Adam):
    """Adam with the epsilon of PPO's first code (Huang 2022), whose steps do nothing while it is halted.

    So the epochs of a rollout can end early, although every rollout has the same number of steps.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], *, lr: float, halted: Callable[[], bool]) -> None:
        """Optimize parameters; `halted` returns whether steps do nothing, the same on every rank."""
        super().__init__(parameters, lr=lr, eps=1e-5, fused=True)
        self._halted = halted

    def step(self, closure: Any = None) -> Any:
        """Update the parameters, or leave them and their moments as they are."""
        return None if self._halted() else super().step(closure)


class Minibatch(NamedTuple):
    """Samples of a rollout: [m, t, A, ...] for m environments at t of its time steps."""

    observation: Any  # [m, t, A, D], or whatever else the policy reads
    action: Tensor  # [m, t, A] int64, or [m, t, A, numbers] float32
    log_probability: Tensor  # [m, t, A] under the policy that acted
    advantage: Tensor  # [m, t, A] normalised over the whole rollout
    target: Tensor  # [m, t, A] for the value
    value: Tensor | None = None  # [m, t, A] of the policy that acted; only a clipped value loss needs it


def losses(
    logits: Tensor,
    value: Tensor,
    batch: Minibatch,
    weights: Tensor,
    settings: Coefficients,
    *,
    distribution: Distribution | None = None,
    value_clip: float | None = None,
) -> LossOutput:
    """Return the sum over environments of the mean loss of their samples, and the statistics in the same form.

    Args:
        logits: [m, t, A, P] of the policy in training.
        value: [m, t, A].
        batch: the samples.
        weights: [m], 0 for padding.
        settings: of the run.
        distribution: of actions; None: a choice, whose logits these are.
        value_clip: a value that is farther from that of the rollout learns only from a larger error; None: all learn.
    """
    distribution = Categorical(logits.shape[-1]) if distribution is None else distribution
    chosen, entropy = distribution.judge(logits, batch.action)
    assert chosen.shape == value.shape == batch.target.shape
    policy = clipped_loss(chosen, batch.log_probability, batch.advantage, low=settings.clip)
    error = 0.5 * (value - batch.target).square()
    if value_clip is not None:
        assert batch.value is not None
        near = batch.value + (value - batch.value).clamp(-value_clip, value_clip)
        error = torch.maximum(error, 0.5 * (near - batch.target).square())
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
