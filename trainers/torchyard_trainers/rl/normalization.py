"""Running normalisation of observations and rewards, as `NormalizeObservation` and `NormalizeReward` of gymnasium.

The statistics are those of all steps before a rollout; within one they do not change, so that the probabilities of an
action are the same in a rollout and in the steps that learn from it. They are sums over environments, each added up in
one order, so that every number of processes has the same bits.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchyard_trainers.core.world import World
from torchyard_trainers.rl.rollout import gather_rows

EPSILON = 1e-8  # below the variance, as gymnasium
MOST = 10.0  # standard deviations, as CleanRL


class Normalization(nn.Module):
    """Observations [..., D] in standard deviations from the mean, at most `MOST`; nothing here is trained."""

    def __init__(self, size: int) -> None:
        """Leave observations as they are until there are statistics."""
        super().__init__()
        self.shift: Tensor
        self.scale: Tensor
        self.register_buffer("shift", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))

    def forward(self, observations: Tensor) -> Tensor:
        """See the class."""
        return ((observations - self.shift) * self.scale).clamp(-MOST, MOST)


class Moments:
    """Count, mean and variance of vectors [D] that came so far; a restore fills them in place."""

    def __init__(self, size: int) -> None:
        """Begin without any vector: mean 0 and variance 1."""
        self.count = torch.zeros((), dtype=torch.float64)
        self.mean = torch.zeros(size, dtype=torch.float64)
        self.variance = torch.ones(size, dtype=torch.float64)

    def state(self) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint."""
        return {"count": self.count, "mean": self.mean, "variance": self.variance}

    def deviation(self) -> Tensor:
        """Return the standard deviation [D], never 0."""
        return (self.variance + EPSILON).sqrt()

    def merge(self, sums: Tensor, world: World, environments: int, each: int) -> None:
        """Add the vectors of a rollout (Chan, Golub, LeVeque 1979). Collective.

        Args:
            sums: [n, 2, D] of `sums_of` this rank's environments about `mean`, padding included.
            world: of the run.
            environments: over all ranks.
            each: vectors of an environment.
        """
        first, second = gather_rows(sums, world, environments).sum(0).to(self.mean.device)
        count = float(environments * each)
        total = self.count + count
        offset = first / count
        squares = self.variance * self.count + second - count * offset**2 + offset**2 * self.count * count / total
        self.mean.add_(offset * count / total)
        self.variance.copy_(squares / total)
        self.count.copy_(total)


def sums_of(values: Tensor, about: Tensor) -> Tensor:
    """Return sum and sum of squares of the distances to `about` [D] of each environment's vectors.

    They are added one after the other, so that those of an environment do not depend on how many there are.

    Args:
        values: [T, n, A, D] of A agents at T steps.
        about: near their mean, so that few digits are lost.

    Returns:
        [n, 2, D] float64.
    """
    sums = about.new_zeros(values.shape[1], 2, len(about))
    for vectors in values.unbind(0):
        for vector in vectors.unbind(1):
            distance = vector.double() - about
            sums[:, 0] += distance
            sums[:, 1] += distance**2
    return sums


class Discounted(NamedTuple):
    """The discounted sums of rewards up to each step, [T, n, A, 1], and those after the last one, [n, A]."""

    sums: Tensor
    running: Tensor


def discounted(reward: Tensor, terminated: Tensor, running: Tensor, gamma: float) -> Discounted:
    """Return what rewards are scaled by the deviation of: discounted sums that a termination, but no time limit, ends.

    Those of gymnasium and so of CleanRL: the sum of the step that terminates is its reward alone.

    Args:
        reward: [T, n, A].
        terminated: [T, n, A] bool.
        running: [n, A] float64, after the step before the first one.
        gamma: discount of a step.
    """
    sums = []
    for now, over in zip(reward, terminated, strict=True):
        running = (running * gamma).masked_fill(over, 0) + now.double()
        sums.append(running)
    return Discounted(torch.stack(sums)[..., None], running)


def scaled(reward: Tensor, deviation: Tensor) -> Tensor:
    """Return rewards [T, n, A] in units of a standard deviation [1], at most `MOST`."""
    return (reward / deviation.to(reward.dtype)).clamp(-MOST, MOST)
