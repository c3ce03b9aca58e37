"""KTO (Ethayarajh 2024, https://arxiv.org/abs/2402.01306): single answers, each labelled as right or wrong."""

from dataclasses import dataclass

import torch

from torchyard_trainers.lm.methods.objectives.objective import Answers, Outcome, same_shape


@dataclass(frozen=True)
class Kto:
    """The loss of equation 8: how far an answer is from the reference, relative to answers to other prompts.

    Attributes:
        beta: how strongly to keep to the reference.
        right_weight: weight of right answers.
        wrong_weight: weight of wrong answers.
    """

    beta: float
    right_weight: float = 1.0
    wrong_weight: float = 1.0
    paired = False
    uses_reference = uses_divergence = True

    def __call__(self, answers: Answers) -> Outcome:
        """See `Objective`."""
        assert answers.reference is not None
        assert answers.divergence is not None
        same_shape(answers.log_probability, answers.reference, answers.right)
        reward = self.beta * (answers.log_probability - answers.reference)
        gain = reward - self.beta * answers.divergence
        loss = torch.where(
            answers.right,
            self.right_weight * (1 - torch.sigmoid(gain)),
            self.wrong_weight * (1 - torch.sigmoid(-gain)),
        )
        return Outcome(loss, reward.detach(), ((gain > 0) == answers.right).float())
