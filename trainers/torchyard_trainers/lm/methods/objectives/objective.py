"""The interface of objectives of preference learning: pure functions of the log-probabilities of answers."""

from typing import NamedTuple, Protocol

from torch import Tensor


class Answers(NamedTuple):
    """Answers of n samples: [m]. Of pairs, the n chosen ones and then the n rejected ones; else one of each sample."""

    log_probability: Tensor  # summed over the tokens of each answer
    tokens: Tensor  # of each answer
    reference: Tensor | None  # log-probabilities under the frozen reference, if the objective uses it
    right: Tensor  # bool: the answer is a chosen one, or is labelled as a right one
    divergence: Tensor | None = None  # [], of answers to other prompts from the reference, if the objective uses it

    def pairs(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the part of the chosen answers and that of the rejected ones: [n] each."""
        chosen, rejected = values.view(2, -1)
        return chosen, rejected


class Outcome(NamedTuple):
    """What an objective makes of answers."""

    loss: Tensor  # of each sample, [n]
    reward: Tensor  # implied by the log-probability of each answer, [m], without gradient
    accuracy: Tensor  # of each sample, [n]: 1 where the reward says what the sample says


class Objective(Protocol):
    """A loss of answers.

    Attributes:
        paired: a sample has a chosen and a rejected answer, in place of one with a label.
        uses_reference: `Answers.reference` is needed.
        uses_divergence: `Answers.divergence` is needed.
    """

    paired: bool
    uses_reference: bool
    uses_divergence: bool

    def __call__(self, answers: Answers) -> Outcome:
        """Return the loss of samples, with gradient, and the rewards of their answers."""


def compared(answers: Answers, loss: Tensor, reward: Tensor) -> Outcome:
    """Return the outcome of pairs: right where the reward of the chosen answer is the higher one."""
    chosen, rejected = answers.pairs(reward.detach())
    same_shape(loss, chosen)
    return Outcome(loss, reward.detach(), (chosen > rejected).float())


def same_shape(first: Tensor, *others: Tensor) -> None:
    """Assert equal shapes: a broadcast of [n, 1] and [n] would train on [n, n] without an error."""
    shapes = [tuple(each.shape) for each in (first, *others)]
    assert len(set(shapes)) == 1, f"shapes differ: {shapes}"
