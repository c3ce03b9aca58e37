"""SimPO (Meng 2024, https://arxiv.org/abs/2405.14734): mean log-probabilities of tokens, by a margin, no reference."""

from dataclasses import dataclass

from torch.nn import functional as F

from torchyard_trainers.lm.methods.objectives.objective import Answers, Outcome, compared, same_shape


@dataclass(frozen=True)
class Simpo:
    """The loss of equation 6.

    Attributes:
        beta: scales rewards.
        margin: by which the reward of the chosen answer should be higher; gamma of the paper.
    """

    beta: float
    margin: float
    paired = True
    uses_reference = uses_divergence = False

    def __call__(self, answers: Answers) -> Outcome:
        """See `Objective`."""
        same_shape(answers.log_probability, answers.tokens)
        reward = self.beta * answers.log_probability / answers.tokens.clamp(min=1)
        chosen, rejected = answers.pairs(reward)
        return compared(answers, -F.logsigmoid(chosen - rejected - self.margin), reward)
