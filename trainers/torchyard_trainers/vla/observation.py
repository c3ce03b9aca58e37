"""The input of a policy, and what it has to learn to do next."""

from typing import NamedTuple

from torch import Tensor


class Observation(NamedTuple):
    """What a policy sees at one moment of m episodes.

    Attributes:
        images: [m, cameras, 3, S, S], float32 in [-1, 1].
        state: [m, d] of the robot, normalised.
        tokens: [m, T] int64, the instruction.
        mask: [m, T] bool, true for its tokens; None: all of them.
    """

    images: Tensor
    state: Tensor
    tokens: Tensor
    mask: Tensor | None = None


class Demonstration(NamedTuple):
    """An observation and the actions that an expert made from there on.

    Attributes:
        observation: at the first of the actions.
        actions: [m, H, a], normalised.
        valid: [m, H] bool; false after the end of the episode.
    """

    observation: Observation
    actions: Tensor
    valid: Tensor
