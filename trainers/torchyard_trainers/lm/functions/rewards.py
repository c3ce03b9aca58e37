"""Rewards of completions, computed by a user's function in processes with a time limit.

The function may hang, crash, print or change its process: none of that reaches training, except as an error that names
the function. Built-in functions run in this process.
"""

import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import TracebackType
from typing import Any, Self

from torchyard_trainers.core.exits import ConfigError, TrainerError
from torchyard_trainers.lm.channel import MessageError
from torchyard_trainers.lm.functions.process import ANSWER_BYTES, GRACE_SECONDS, START_SECONDS, FunctionProcess

# Of an answer, besides ANSWER_BYTES, for each completion.
_NUMBER_BYTES = 64
_BUILT_IN = "torchyard_trainers."


class RewardError(TrainerError):
    """A reward function hung, failed, or returned anything but one finite number for each completion."""


class Rewards:
    """A reward function of prompts, completions and records; `arguments.caller` says how it is called."""

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
        self._begun: list[str] = []  # the completions that processes work at
        self._answer: Any = None  # of a built-in function
        self._columns: dict[str, None] = {}  # of all records so far; a record may lack some
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
        """Return the reward of each completion, as `begin` and `results` do."""
        self.begin(prompts, completions, rows)
        return self.results()

    def begin(self, prompts: Sequence[str], completions: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
        """Send completions to the processes, which work at the same time as those of other rewards.

        Raises:
            RewardError: the processes do not take them.
        """
        assert len(prompts) == len(completions) == len(rows)
        self._begun = list(completions)
        if self._built_in is not None:
            self._answer = self._built_in(prompts, completions, rows)
            return
        self._columns |= dict.fromkeys(column for row in rows for column in row)
        for worker, part in zip(self._workers, self._parts(), strict=False):
            texts = list(prompts[part]), list(completions[part])
            worker.begin(*texts, [dict(row) for row in rows[part]], list(self._columns))

    def results(self) -> list[float]:
        """Return the reward of each completion that was sent.

        Raises:
            RewardError: naming the function, what it did, and the completion if there is one.
            ConfigError: a parameter of the function is no column of the records.
        """
        if self._built_in is not None:
            return self._checked(self._answer, self._begun)
        found: list[float] = []
        for worker, part in zip(self._workers, self._parts(), strict=False):
            completions = self._begun[part]
            found += self._checked(worker.result(len(completions)), completions)
        return found

    def _parts(self) -> list[slice]:
        """Return the completions of each process."""
        count = len(self._begun)
        size = -(-count // len(self._workers)) if count else 1
        return [slice(at, at + size) for at in range(0, count, size)]

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
            got = f"{len(found)} of them" if isinstance(found, list | tuple) else _shown(found)
            raise RewardError(
                f"trainer.params.reward: {self._name} must return a list of {len(completions)} numbers, one for each "
                f"completion, and returned {got}"
            )
        for number, completion in zip(found, completions, strict=True):
            if _is_finite(number):
                continue
            raise RewardError(
                f"trainer.params.reward: {self._name} returned {_shown(number)} for the completion "
                f"{completion[:80]!r}; return a finite number"
            )
        return [float(number) for number in found]


def _is_finite(number: Any) -> bool:
    """Return whether it is a number that a float can hold."""
    try:
        return isinstance(number, bool | int | float) and math.isfinite(number)
    except OverflowError:  # an int beyond the largest float
        return False


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


class _Worker:
    """One process that calls the function."""

    def __init__(self, function: str, seconds: float) -> None:
        self._name, self._seconds = function, seconds
        self.process = FunctionProcess("reward", [function], seconds)

    def wait_for_start(self) -> None:
        """Wait until the function is imported."""
        kind, value = self._receive(START_SECONDS, "be imported", ANSWER_BYTES)
        if kind == "missing":
            raise ConfigError(f"trainer.params.reward: {self._name!r}, but {value}")
        if kind == "error":
            raise RewardError(f"trainer.params.reward: {self._name} cannot be imported: {value}")

    def begin(self, prompts: list[str], completions: list[str], rows: list[dict[str, Any]], columns: list[str]) -> None:
        """Send completions to the process; values of a record that JSON lacks, such as times, are sent as text."""
        try:
            self.process.send([prompts, completions, rows, columns], self._seconds + GRACE_SECONDS)
        except TimeoutError:
            self.process.kill()
            raise RewardError(
                f"trainer.params.reward: the process of {self._name} took no completions within {self._seconds:g} s: "
                "it does not run. Do not stop it, nor close its files, in the function"
            ) from None
        except OSError as error:
            raise self._gone() from error

    def result(self, count: int) -> Any:
        """Return what the function returned for `count` completions."""
        act, limit = f"return rewards of {count} completions", ANSWER_BYTES + _NUMBER_BYTES * count
        kind, value = self._receive(self._seconds + GRACE_SECONDS, act, limit)
        if kind == "missing":
            raise ConfigError(f"trainer.params.reward: {self._name!r}, but {value}")
        if kind == "error":
            raise RewardError(f"trainer.params.reward: {self._name} failed: {value}")
        if kind == "late":
            raise self._late(act, value)
        return value

    def close(self) -> None:
        """End the process."""
        self.process.close()

    def _receive(self, seconds: float, act: str, limit: int) -> tuple[str, Any]:
        try:
            return self.process.receive(seconds, limit)
        except MessageError as error:
            self.process.kill()
            raise RewardError(
                f"trainer.params.reward: the process of {self._name} answered with {error}. Return a list of finite "
                "numbers, one for each completion, and write to no file that the function has not opened"
            ) from None
        except (EOFError, TimeoutError, OSError) as error:
            late = isinstance(error, TimeoutError)
            if late:
                self.process.kill()
            stack = self.process.stack()
            if not stack and not late:
                raise self._gone() from None
            raise self._late(act, stack) from None

    def _late(self, act: str, where: str) -> RewardError:
        """Return the error of a call that took too long."""
        imports = act == "be imported"
        limit = "" if imports else ", or raise trainer.params.rewardSeconds"
        return RewardError(
            f"trainer.params.reward: {self._name} did not {act} within "
            f"{START_SECONDS if imports else self._seconds:g} s{f'; it was at {where}' if where else ''}. "
            f"Make it faster{limit}"
        )

    def _gone(self) -> RewardError:
        """Return the error of a process that has closed its end: it ends, or has ended."""
        how = self.process.end()
        return RewardError(
            f"trainer.params.reward: the process of {self._name} {how} during a call; its output is in the log"
        )


def _load(function: str) -> Any:
    module, _, name = function.partition(":")
    return getattr(import_module(module), name)
