"""What an environment is here: pure functions on tensors that hold many copies of one world.

A state is a dict of tensors [N, ...], so that a rollout, a checkpoint and a CUDA graph can hold it. Nothing is drawn
inside: whoever steps hands in uniform numbers, so an episode is a function of its keys alone. Agents whose episode ends
start the next one within the same step.
"""

from typing import NamedTuple, Protocol

from torch import Tensor

State = dict[str, Tensor]


class Outcome(NamedTuple):
    """What a step of N environments with A agents brought."""

    state: State  # agents whose episode ended are in their next one
    reward: Tensor  # [N, A] float32
    terminated: Tensor  # [N, A] bool: the episode came to its end, nothing follows
    truncated: Tensor  # [N, A] bool: the episode was cut off, something would have followed
    reached: Tensor | None  # [N, A, D] what agents would have seen next; None where nothing is ever truncated


class Environment(Protocol):
    """Many copies of one world."""

    agents: int
    actions: int
    observed: int  # D, numbers that an agent sees
    planes: tuple[int, int, int] | None  # [C, H, W] of the first numbers of an observation, if they are a picture
    draws: int  # uniform numbers that one copy needs for a step or a reset
    limit: int  # steps after which an evaluation cuts an episode off
    measure: str  # name of what an evaluation tells

    def reset(self, numbers: Tensor) -> State:
        """Start N copies from numbers [N, draws], uniform in (0, 1)."""

    def observe(self, state: State) -> Tensor:
        """Give what every agent sees: [N, A, D]."""

    def step(self, state: State, actions: Tensor, numbers: Tensor) -> Outcome:
        """Advance all copies by actions [N, A] int64, with numbers [N, draws]."""

    def quality(self, episode_return: Tensor, terminated: Tensor) -> Tensor:
        """Turn the returns of episodes, and whether they terminated, into what `measure` names; higher is better."""
