"""Rewards of completions, computed by a user's function in processes with a time limit.

The function may hang, crash, print or change its process: none of that reaches training, except as an error that names
the function. Built-in functions run in this process.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from multiprocessing import Pipe
from types import TracebackType
from typing import IO, Any, Self

from torchyard_trainers.core.exits import ConfigError, TrainerError

# A worker ends itself at the limit and leaves its stack; it is ended from outside if it cannot.
GRACE_SECONDS = 5.0
START_SECONDS = 120.0  # imports of the user's module included
_BUILT_IN = "torchyard_trainers."


class RewardError(TrainerError):
    """A reward function hung, failed, or returned anything but one finite number for each completion."""


class Rewards:
    """A reward function, MODULE:FUNCTION(prompts, completions, rows) -> list[float]."""

    def __init__(self, function: str, *, seconds: float = 60.0, workers: int = 1) -> None:
        """Start the worker processes.

        Args:
            function: MODULE:FUNCTION, imported with the job's working directory and PYTHONPATH.
            seconds: limit of one call.
            workers: processes that share the completions of a call.

        Raises:
            ConfigError: the function does not exist.
            RewardError: its module cannot be imported.
        """
        self._name, self._seconds = function, seconds
        self._workers: list[_Worker] = []
        self._built_in = _load(function) if function.startswith(_BUILT_IN) else None
        if self._built_in is None:
            self._workers = [_Worker(function, seconds) for _ in range(workers)]
            try:
                for worker in self._workers:
                    worker.wait_for_start()
            except BaseException:
                self.close()
                raise

    def __call__(
        self, prompts: Sequence[str], completions: Sequence[str], rows: Sequence[Mapping[str, Any]]
    ) -> list[float]:
        """Return the reward of each completion.

        Raises:
            RewardError: naming the function, what it did, and the completion if there is one.
        """
        assert len(prompts) == len(completions) == len(rows)
        if self._built_in is not None:
            return self._checked(self._built_in(prompts, completions, rows), completions)
        size = -(-len(completions) // len(self._workers)) if completions else 1
        parts = [slice(at, at + size) for at in range(0, len(completions), size)]
        found: list[float] = []
        for worker, part in zip(self._workers, parts, strict=False):
            worker.begin(list(prompts[part]), list(completions[part]), [dict(row) for row in rows[part]])
        for worker, part in zip(self._workers, parts, strict=False):
            found += self._checked(worker.result(len(completions[part])), completions[part])
        return found

    def close(self) -> None:
        """End the worker processes."""
        for worker in self._workers:
            worker.close()
        self._workers = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def _checked(self, found: Any, completions: Sequence[str]) -> list[float]:
        if not isinstance(found, Sequence) or isinstance(found, str | bytes) or len(found) != len(completions):
            got = f"{len(found)} of them" if isinstance(found, list | tuple) else repr(found)[:80]
            raise RewardError(
                f"trainer.params.reward: {self._name} must return a list of {len(completions)} numbers, one for each "
                f"completion, and returned {got}"
            )
        for number, completion in zip(found, completions, strict=True):
            if isinstance(number, bool | int | float) and math.isfinite(number):
                continue
            raise RewardError(
                f"trainer.params.reward: {self._name} returned {number!r} for the completion {completion[:80]!r}; "
                "return a finite number"
            )
        return [float(number) for number in found]


class _Worker:
    """One process that calls the function."""

    def __init__(self, function: str, seconds: float) -> None:
        self._name, self._seconds = function, seconds
        self._connection, theirs = Pipe()
        self._stack: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the worker
        words = [function, str(theirs.fileno()), str(self._stack.fileno()), str(seconds)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "torchyard_trainers.lm.reward_worker", *words],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(), self._stack.fileno()),
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        )
        theirs.close()
        self._began = time.monotonic()

    def wait_for_start(self) -> None:
        """Wait until the function is imported."""
        kind, value = self._receive(START_SECONDS, "be imported")
        if kind == "missing":
            raise ConfigError(f"trainer.params.reward: {self._name!r}, but {value}")
        if kind == "error":
            raise RewardError(f"trainer.params.reward: {self._name} cannot be imported: {value}")

    def begin(self, prompts: list[str], completions: list[str], rows: list[dict[str, Any]]) -> None:
        """Send completions to the process; values of a record that JSON lacks, such as times, are sent as text."""
        self._began = time.monotonic()
        try:
            self._connection.send_bytes(json.dumps([prompts, completions, rows], default=str).encode())
        except OSError as error:
            raise self._gone() from error

    def result(self, count: int) -> Any:
        """Return what the function returned for `count` completions."""
        kind, value = self._receive(self._seconds + GRACE_SECONDS, f"return rewards of {count} completions")
        if kind == "error":
            raise RewardError(f"trainer.params.reward: {self._name} failed: {value}")
        return value

    def _receive(self, seconds: float, act: str) -> tuple[str, Any]:
        left = max(0.0, self._began + seconds - time.monotonic())
        try:
            if self._connection.poll(left):
                kind, value = json.loads(self._connection.recv_bytes())  # not `recv`, which unpickles
                return kind, value
        except (EOFError, OSError):
            pass  # the process has closed its end: it ends, or has ended
        # Changes nothing for a process that ends already: its exit code is determined.
        self._process.kill()
        self._process.wait()
        stack = self._read_stack()
        if stack or time.monotonic() - self._began >= seconds:
            limit = "" if act == "be imported" else ", or raise trainer.params.rewardSeconds"
            where = f"; it was at {stack}" if stack else ""
            raise RewardError(
                f"trainer.params.reward: {self._name} did not {act} within "
                f"{seconds if act == 'be imported' else self._seconds:g} s{where}. Make it faster{limit}"
            )
        raise self._gone()

    def _gone(self) -> RewardError:
        code = self._process.wait()
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return RewardError(
            f"trainer.params.reward: the process of {self._name} {how} during a call; its output is in the log"
        )

    def _read_stack(self) -> str:
        """Return the innermost line of the stack that the process left at its time limit."""
        self._stack.seek(0)
        lines = [line.strip() for line in self._stack if line.strip().startswith("File ")]
        return lines[0] if lines else ""

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.kill()
        self._process.wait()
        self._stack.close()


def _load(function: str) -> Any:
    module, _, name = function.partition(":")
    return getattr(import_module(module), name)
