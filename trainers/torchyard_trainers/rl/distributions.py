"""The distributions that policies draw actions from: of choices, or of real numbers.

A network returns the parameters of its distribution in one tensor [..., parameters].
"""

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from torchyard_trainers.core.randomness import gumbel, normal
from torchyard_trainers.rl.clipped import entropy_of, likelihood_of
from torchyard_trainers.rl.environment import Environment


class Likelihood(NamedTuple):
    """The log-probability of an action and the entropy of its distribution, both [...]."""

    log_probability: Tensor
    entropy: Tensor


class Distribution(Protocol):
    """A family of distributions over the actions of an agent."""

    parameters: int  # numbers that a network returns
    draws: int  # random numbers of an action

    def noise(self, keys: Tensor) -> Tensor:
        """Return the random numbers of `sample` from keys [..., draws]."""

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """Return an action for each row of parameters [..., parameters] and noise [..., draws]."""

    def mode(self, parameters: Tensor) -> Tensor:
        """Return the likeliest actions."""

    def judge(self, parameters: Tensor, action: Tensor) -> Likelihood:
        """Return how likely actions are."""


class Categorical:
    """One of several choices; the parameters are logits, and an action is a number [...] int64."""

    def __init__(self, choices: int) -> None:
        self.parameters = self.draws = choices

    def noise(self, keys: Tensor) -> Tensor:
        """See `Distribution`."""
        return gumbel(keys)

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """See `Distribution`."""
        return (parameters + noise).argmax(-1)

    def mode(self, parameters: Tensor) -> Tensor:
        """See `Distribution`."""
        return parameters.argmax(-1)

    def judge(self, parameters: Tensor, action: Tensor) -> Likelihood:
        """See `Distribution`."""
        log_probabilities = F.log_softmax(parameters, -1)
        return Likelihood(likelihood_of(log_probabilities, action), entropy_of(log_probabilities))


class Gaussian:
    """Independent normal distributions; the parameters are means and logarithms of deviations.

    An action is [..., numbers] float32 without bounds: the environment clips it, as in CleanRL, so that the
    probability is that of what was drawn.
    """

    def __init__(self, numbers: int) -> None:
        self.parameters, self.draws = 2 * numbers, numbers

    def noise(self, keys: Tensor) -> Tensor:
        """See `Distribution`."""
        return normal(keys)

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """See `Distribution`."""
        mean, log_deviation = parameters.chunk(2, -1)
        return mean + log_deviation.exp() * noise

    def mode(self, parameters: Tensor) -> Tensor:
        """See `Distribution`."""
        return parameters.chunk(2, -1)[0]

    def judge(self, parameters: Tensor, action: Tensor) -> Likelihood:
        """See `Distribution`."""
        mean, log_deviation = parameters.chunk(2, -1)
        distance = (action - mean) * (-log_deviation).exp()
        log_probability = -0.5 * distance.square() - log_deviation - 0.5 * math.log(2 * math.pi)
        entropy = log_deviation + 0.5 * (1 + math.log(2 * math.pi))
        return Likelihood(log_probability.sum(-1), entropy.sum(-1))


def distribution_of(environment: Environment) -> Distribution:
    """Return the distribution of an agent's actions in an environment."""
    return (Gaussian if is_continuous(environment) else Categorical)(environment.actions)


def is_continuous(environment: Environment) -> bool:
    """Return whether actions are real numbers, which an environment says by `continuous = True`."""
    return bool(getattr(environment, "continuous", False))


def no_actions(environment: Environment, copies: int) -> Tensor:
    """Return actions of 0 for all agents of some copies: [N, A] int64, or [N, A, actions] float32."""
    shape = copies, environment.agents
    return torch.zeros(*shape, environment.actions) if is_continuous(environment) else torch.zeros(*shape).long()
