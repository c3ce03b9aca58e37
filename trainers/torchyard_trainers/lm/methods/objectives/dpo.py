"""DPO (Rafailov 2023, https://arxiv.org/abs/2305.18290): the chosen answer gains more probability than the rejected."""

from dataclasses import dataclass

from torch.nn import functional as F

from torchyard_trainers.lm.methods.objectives.objective import Answers, Outcome, compared, same_shape


@dataclass(frozen=True)
class Dpo:
    """The sigmoid loss of pairs.

    Attributes:
        beta: how strongly to keep to the reference; a smaller one allows more distance.
        length_normalized: divide log-probabilities by tokens, so that a long answer is not preferred for its length.
    """

    beta: float
    length_normalized: bool = False
    paired = uses_reference = True
    uses_divergence = False

    def __call__(self, answers: Answers) -> Outcome:
        """See `Objective`."""
        assert answers.reference is not None
        same_shape(answers.log_probability, answers.reference, answers.tokens)
        gain = answers.log_probability - answers.reference
        if self.length_normalized:
            gain = gain / answers.tokens.clamp(min=1)
        chosen, rejected = answers.pairs(self.beta * gain)
        return compared(answers, -F.logsigmoid(chosen - rejected), self.beta * gain)
