"""A process that calls functions of the user's: started, asked, and ended with all that it started."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any

from torchyard_trainers.lm.channel import Channel

# A process ends itself at the limit of a call and leaves its stack; it is ended from outside if it cannot.
GRACE_SECONDS = 5.0
START_SECONDS = 120.0  # imports of the user's module included
ANSWER_BYTES = 64 << 10


class FunctionProcess:
    """One process of `functions.worker`."""

    def __init__(self, kind: str, functions: Sequence[str], seconds: float) -> None:
        """Start the process.

        Args:
            kind: `reward` or `tools`.
            functions: MODULE:FUNCTION each.
            seconds: limit of one call.
        """
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours)
        self._stack: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        words = [kind, ",".join(functions), str(theirs.fileno()), str(self._stack.fileno()), str(seconds)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "torchyard_trainers.lm.functions.worker", *words],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(), self._stack.fileno()),
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
            process_group=0,  # what the function starts ends with it
        )
        theirs.close()
        self._began = time.monotonic()

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def send(self, message: Any, seconds: float) -> None:
        """Send a message; the time of its answer begins.

        Raises:
            TimeoutError: the process does not take it in time.
            OSError: it has ended.
        """
        self._began = time.monotonic()
        self._channel.send(message, seconds)

    def receive(self, seconds: float, limit: int) -> tuple[str, Any]:
        """Return kind and value of the answer.

        Args:
            seconds: since the message was sent.
            limit: of the answer, in bytes.

        Raises:
            TimeoutError: it did not come.
            EOFError, OSError: the process has ended.
            MessageError: it is no answer.
        """
        left = max(0.0, self._began + seconds - time.monotonic())
        return self._channel.receive_answer(left, limit, lambda: self._process.poll() is None)

    def stack(self) -> str:
        """Return the innermost line of the stack that the process left at its time limit; "": it left none."""
        self._stack.seek(0)
        lines = (line.strip() for line in self._stack.read(ANSWER_BYTES).splitlines())
        return next((line for line in lines if line.startswith("File ")), "")

    def end(self) -> str:
        """Wait until the process has ended, or end it; return how it ended."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_SECONDS)
        code = self._process.poll()
        self.kill()
        if code is None:
            return "closed its connection"
        return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def kill(self) -> None:
        """End the process and those that the function left in its group."""
        with suppress(ProcessLookupError):  # the group is gone
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """End the process and free what it needs."""
        self._channel.close()
        self.kill()
        self._stack.close()
