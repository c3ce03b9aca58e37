"""Exit codes of the command line, and the error that it prints as one sentence and its fix."""

from typing import Final

from torchyard.client import errors
from torchyard.client.errors import TorchYardError

SUCCEEDED: Final = 0
FAILED: Final = errors.FAILED
INVALID: Final = errors.INVALID
STOPPED: Final = 75  # EX_TEMPFAIL: saved and stopped, can be resumed
INTERRUPTED: Final = 130  # 128 + SIGINT: stopped at once, nothing was saved on purpose


class RefusalError(TorchYardError):
    """A command line that cannot be carried out; printed as one sentence and its fix, never as a traceback."""
