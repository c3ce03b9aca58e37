"""ORPO (Hong 2024, https://arxiv.org/abs/2403.07691): supervised loss and odds ratio of the answers, no reference."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from torchyard_trainers.lm.methods.objectives.objective import Answers, Outcome, compared, same_shape

_LARGEST = -1e-7  # a log-probability of 0 has infinite odds
_LOG_2 = 0.6931471805599453


@dataclass(frozen=True)
class Orpo:
    """The loss of equation 6: the mean over pairs of both parts, each with mean log-probabilities of tokens.

    Attributes:
        beta: weight of the odds ratio; lambda of the paper.
    """

    beta: float
    paired = True
    uses_reference = uses_divergence = False

    def __call__(self, answers: Answers) -> Outcome:
        """See `Objective`."""
        same_shape(answers.log_probability, answers.tokens)
        mean = answers.log_probability / answers.tokens.clamp(min=1)
        chosen, _ = answers.pairs(mean)
        odds = mean - log1mexp(mean.clamp(max=_LARGEST))
        of_chosen, of_rejected = answers.pairs(odds)
        return compared(answers, -chosen - self.beta * F.logsigmoid(of_chosen - of_rejected), self.beta * mean)


def log1mexp(values: Tensor) -> Tensor:
    """Return log(1 - exp(x)) of negative values (Maechler 2012), without loss of digits near 0 and far from it."""
    near = values > -_LOG_2
    # Each branch gets values that it is exact for: the gradient of the one that is not taken would be nan.
    one = torch.log(-torch.expm1(values.where(near, values.new_tensor(-_LOG_2))))
    return one.where(near, torch.log1p(-torch.exp(values.where(~near, values.new_tensor(-_LOG_2)))))
