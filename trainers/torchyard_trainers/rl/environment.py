"""The environment protocol: pure functions on tensors that hold many copies of one world.

A state is a dict of tensors [N, ...], so that a rollout, a checkpoint and a CUDA graph can hold it. An environment
draws no random numbers: the caller passes uniform ones, so an episode is a pure function of its keys. An agent whose
episode ends starts the next one within the same step.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

State = dict[str, Tensor]


class Outcome(NamedTuple):
    """The outcome of one step of N environments with A agents."""

    state: State  # agents whose episode ended are already in their next one
    reward: Tensor  # [N, A] float32
    terminated: Tensor  # [N, A] bool: the episode reached a terminal state
    truncated: Tensor  # [N, A] bool: the episode was cut off before a terminal state
    final: State | None  # all agents before the reset; None for environments that never truncate


class Environment(Protocol):
    """Many copies of one world."""

    agents: int
    actions: int  # choices of an agent; with `continuous = True`, which is optional, the numbers of an action
    observed: int  # D, size of an agent's observation
    planes: tuple[int, int, int] | None  # [C, H, W] of the image at the start of an observation, if there is one
    draws: int  # uniform numbers that one copy needs for a step or a reset
    limit: int  # steps after which an evaluation cuts an episode off
    measure: str  # name of the metric that an evaluation reports

    def reset(self, numbers: Tensor) -> State:
        """Start N copies from numbers [N, draws], uniform in (0, 1)."""

    def observe(self, state: State) -> Tensor:
        """Return the observation of every agent: [N, A, D]."""

    def step(self, state: State, actions: Tensor, numbers: Tensor) -> Outcome:
        """Advance all copies by actions, with numbers [N, draws].

        Actions are [N, A] int64; if they are continuous, [N, A, actions] float32 without bounds.
        """

    def quality(self, episode_return: Tensor, terminated: Tensor) -> Tensor:
        """Convert episode returns, and whether the episodes terminated, to the metric `measure`; higher is better."""


def select(chosen: Tensor, first: State, second: State) -> State:
    """Return the state that has the copies of `first` where `chosen` [N] is true, else those of `second`."""
    return {
        name: torch.where(chosen.view(-1, *[1] * (each.dim() - 1)), first[name], each) for name, each in second.items()
    }
