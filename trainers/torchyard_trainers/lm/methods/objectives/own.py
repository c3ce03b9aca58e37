"""A function of the user's as the objective: it is called in the trainer, since its loss needs gradients."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from torchyard_trainers.core.exits import ConfigError, TrainerError
from torchyard_trainers.core.parameters import module_of
from torchyard_trainers.lm.methods.objectives.objective import Answers, Outcome, compared

ARGUMENTS = ("chosen", "rejected", "reference_chosen", "reference_rejected", "chosen_tokens", "rejected_tokens", "beta")


class Own:
    """A function of the log-probabilities of pairs, which are relative to the reference in its rewards."""

    paired = uses_reference = True
    uses_divergence = False

    def __init__(self, name: str, beta: float) -> None:
        """Import the function MODULE:FUNCTION.

        Raises:
            ConfigError: there is no such function.
        """
        self._name, self._beta = name, beta
        at, (path, _, function) = f"trainer.params.objective: {name!r}", name.partition(":")
        found: Callable[..., Any] | None = getattr(module_of(path, at), function, None)
        if not callable(found):
            raise ConfigError(f"{at}, but {path} has no function {function}")
        self._function = found

    def __call__(self, answers: Answers) -> Outcome:
        """See `Objective`."""
        assert answers.reference is not None
        values = [
            *answers.pairs(answers.log_probability),
            *answers.pairs(answers.reference),
            *answers.pairs(answers.tokens),
        ]
        try:
            loss = self._function(*values, self._beta)
        except TypeError as error:
            raise TrainerError(
                f"trainer.params.objective: {self._name} is called as f({', '.join(ARGUMENTS)}), and failed: {error}"
            ) from error
        self._check(loss, values[0])
        return compared(answers, loss, self._beta * (answers.log_probability - answers.reference))

    def _check(self, loss: Any, chosen: Tensor) -> None:
        count, learns = len(chosen), chosen.requires_grad
        if isinstance(loss, Tensor) and loss.shape == chosen.shape and loss.requires_grad == learns:
            return
        what = type(loss).__name__
        if isinstance(loss, Tensor):
            what = f"a tensor of shape {tuple(loss.shape)}{'' if loss.requires_grad else ' without gradient'}"
        raise TrainerError(
            f"trainer.params.objective: {self._name} must return the loss of each of {count} pairs, a tensor of shape "
            f"({count},) with gradient, and returned {what}"
        )
