"""The errors of the Python API; the command line prints the same sentences."""

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from torchyard.api.status import TrainingJobStatus
    from torchyard.api.validation.problems import Problem

FAILED: Final = 1
INVALID: Final = 64  # EX_USAGE: the input or the command line is wrong


class TorchYardError(Exception):
    """The request cannot be carried out. `str()` is one sentence and a fix.

    Attributes:
        sentence: what happened, and the evidence.
        fix: what to do; empty if the sentence already says it.
        code: exit code that the command line uses.
    """

    def __init__(self, sentence: str, fix: str = "", code: int = INVALID) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.fix = fix
        self.code = code

    def __str__(self) -> str:
        return f"{self.sentence}; {self.fix}" if self.fix else self.sentence


class InvalidJobError(TorchYardError):
    """The job is invalid; `problems` lists every field that is wrong, with a fix."""

    def __init__(self, sentence: str, problems: "Sequence[Problem]" = (), fix: str = "") -> None:
        super().__init__(sentence, fix)
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return "\n".join([*map(str, self.problems), super().__str__()])


def is_full(error: OSError) -> bool:
    """Return whether a write failed since there is no space, or no quota, left."""
    return error.errno in {errno.ENOSPC, errno.EDQUOT}


class NotStoredError(TorchYardError):
    """Something cannot be written into `$TORCHYARD_HOME`; on a full disk the request is valid all the same.

    Args:
        what: cannot be stored.
        error: of the write.
    """

    def __init__(self, what: str, error: OSError) -> None:
        full = is_full(error)
        fix = "free space there, or set TORCHYARD_HOME to a folder" if full else "set TORCHYARD_HOME to a folder"
        where = f"{error.filename}: " if error.filename else ""
        super().__init__(
            f"{what} cannot be stored ({where}{error.strerror or error})",
            f"{fix} you can write to",
            FAILED if full else INVALID,
        )


class NotFoundError(TorchYardError):
    """The job or sweep does not exist."""


class JobFailedError(TorchYardError):
    """The job failed; `status` is its last status."""

    def __init__(self, sentence: str, fix: str, status: "TrainingJobStatus") -> None:
        super().__init__(sentence, fix, FAILED)
        self.status = status
