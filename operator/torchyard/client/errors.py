"""The errors of the Python API; the command line prints the same sentences."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from torchyard.api.status import TrainingJobStatus
    from torchyard.api.validation.problems import Problem

FAILED: Final = 1
INVALID: Final = 64  # EX_USAGE: the input or the command line is wrong


class TorchYardError(Exception):
    """A request that cannot be carried out: one sentence, and how to fix it.

    Attributes:
        sentence: what happened, and the evidence.
        fix: what to do; empty where the sentence says it.
        code: exit code of the command line.
    """

    def __init__(self, sentence: str, fix: str = "", code: int = INVALID) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.fix = fix
        self.code = code

    def __str__(self) -> str:
        return f"{self.sentence}; {self.fix}" if self.fix else self.sentence


class InvalidJobError(TorchYardError):
    """A job that breaks rules; `problems` names every field, its fault and the fix."""

    def __init__(self, sentence: str, problems: "Sequence[Problem]" = (), fix: str = "") -> None:
        super().__init__(sentence, fix)
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return "\n".join([*map(str, self.problems), super().__str__()])


class NotFoundError(TorchYardError):
    """There is no job or sweep of that name."""


class JobFailedError(TorchYardError):
    """A job that was waited for has failed; `status` is its last one."""

    def __init__(self, sentence: str, fix: str, status: "TrainingJobStatus") -> None:
        super().__init__(sentence, fix, FAILED)
        self.status = status
