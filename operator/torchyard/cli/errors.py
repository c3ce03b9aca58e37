"""What the command line says when it cannot go on: one sentence, the fix, an exit code."""

from typing import Final

SUCCEEDED: Final = 0
FAILED: Final = 1
INVALID: Final = 64  # EX_USAGE: the input or the command line is wrong
STOPPED: Final = 75  # EX_TEMPFAIL: saved and stopped, can be resumed
INTERRUPTED: Final = 130  # 128 + SIGINT: stopped at once, nothing was saved on purpose


class RefusalError(Exception):
    """A request that cannot be carried out; printed as one sentence and its fix, never as a traceback."""

    def __init__(self, sentence: str, fix: str = "", code: int = INVALID) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.fix = fix
        self.code = code
