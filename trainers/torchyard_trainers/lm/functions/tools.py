"""Tools that a model calls: functions of the user's, in processes with a time limit for each call.

What a call does wrong is its answer, as an error that the model reads: an unknown function, other arguments, an
exception, no answer in time, a process that ends. Training continues.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from torchyard_trainers.core.exits import ConfigError, TrainerError
from torchyard_trainers.lm.channel import MessageError
from torchyard_trainers.lm.chat.tool_calls import ToolCall
from torchyard_trainers.lm.functions.process import GRACE_SECONDS, START_SECONDS, FunctionProcess

_CALL_BYTES = 128 << 10  # limit of the answer to one call, as JSON
_AT_ONCE = 64  # calls of coroutines in a message


class ToolError(TrainerError):
    """The functions of tools cannot be imported."""


class ToolAnswer(NamedTuple):
    """What the model reads."""

    text: str
    failed: bool = False


class Tools:
    """The functions of tools.

    Attributes:
        schemas: descriptions for chat templates, from signatures and docstrings.
    """

    def __init__(self, functions: Sequence[str], *, seconds: float, workers: int = 1) -> None:
        """Start the processes.

        Args:
            functions: MODULE:FUNCTION each, imported with the job's working directory and PYTHONPATH.
            seconds: limit of one call.
            workers: processes that calls are spread over.

        Raises:
            ConfigError: a function does not exist, lacks types or a docstring, or has the name of another.
            ToolError: a module cannot be imported.
        """
        self._functions, self._seconds = tuple(functions), seconds
        # To describe functions takes seconds of imports; one process does.
        self._workers = [self._process("tools" if number else "described tools") for number in range(workers)]
        ready, *_ = [self._started(worker) for worker in self._workers]
        self.schemas: list[dict[str, Any]] = [each["schema"] for each in ready]
        names = [each["function"]["name"] for each in self.schemas]
        if twice := next((each for each in names if names.count(each) > 1), None):
            self.close()
            raise ConfigError(f"trainer.params.tools: two functions have the name {twice!r}; rename one")
        self._number_of = {name: number for number, name in enumerate(names)}
        self._waits = [bool(each["waits"]) for each in ready]

    def __call__(self, calls: Sequence[ToolCall]) -> list[ToolAnswer]:
        """Return the answer of each call.

        Coroutines run at the same time, other functions one after the other in each process.

        Raises:
            ToolError: a process that had to be started again does not start.
        """
        answers: dict[int, ToolAnswer] = {}
        for number, call in enumerate(calls):
            if call.name not in self._number_of:
                answers[number] = _error(f"there is no tool {call.name!r}; use {', '.join(self._number_of)}")
        known = [number for number in range(len(calls)) if number not in answers]
        waiting = [number for number in known if self._waits[self._number_of[calls[number].name]]]
        messages = [waiting[at : at + _AT_ONCE] for at in range(0, len(waiting), _AT_ONCE)]
        messages += [[number] for number in known if number not in set(waiting)]
        for at in range(0, len(messages), len(self._workers)):
            part = messages[at : at + len(self._workers)]
            begun = [self._begin(worker, [calls[each] for each in numbers]) for worker, numbers in enumerate(part)]
            found = [
                self._answers(worker, len(numbers)) if begun[worker] else None for worker, numbers in enumerate(part)
            ]
            for worker, numbers in enumerate(part):  # once all have answered: a start takes time
                own = found[worker] or self._renewed(worker, len(numbers))
                answers |= dict(zip(numbers, own, strict=True))
        return [answers[number] for number in range(len(calls))]

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.close()
        self._workers = []

    def _begin(self, worker: int, calls: Sequence[ToolCall]) -> bool:
        try:
            message = [[self._number_of[each.name], dict(each.arguments)] for each in calls]
            self._workers[worker].send(message, self._seconds + GRACE_SECONDS)
        except (TimeoutError, OSError):
            return False
        return True

    def _answers(self, worker: int, count: int) -> list[ToolAnswer] | None:
        """Return the answers of a process; None: it has ended or has to be ended."""
        try:
            kind, value = self._workers[worker].receive(self._seconds + GRACE_SECONDS, _CALL_BYTES * count)
        except (EOFError, TimeoutError, OSError, MessageError):
            return None
        if kind != "result" or not isinstance(value, list) or len(value) != count:
            return None
        found = []
        for how, text in value:
            if how == "result" and isinstance(text, str):
                found.append(ToolAnswer(text))
            else:
                found.append(_error(self._late if how == "late" else str(text)))
        return found

    @property
    def _late(self) -> str:
        return f"no answer within {self._seconds:g} s"

    def _renewed(self, worker: int, count: int) -> list[ToolAnswer]:
        """Start a process again; return what the calls that it was at have as answers."""
        old = self._workers[worker]
        old.kill()
        problem = self._late if old.stack() else "the process of the tool ended"
        old.close()
        self._workers[worker] = self._process("tools")
        self._started(self._workers[worker])
        return [_error(problem)] * count

    def _process(self, kind: str) -> FunctionProcess:
        return FunctionProcess(kind, self._functions, self._seconds)

    def _started(self, worker: FunctionProcess) -> Any:
        """Wait until the functions are imported; return their descriptions, if the process makes them."""
        try:
            kind, value = worker.receive(START_SECONDS, 1 << 20)
        except (EOFError, TimeoutError, OSError, MessageError) as error:
            late, how = isinstance(error, TimeoutError), worker.end()
            what = f"are not imported within {START_SECONDS:g} s" if late else f"end their process: it {how}"
            raise ToolError(f"trainer.params.tools: the modules of {', '.join(self._functions)} {what}") from error
        if kind == "missing":
            raise ConfigError(f"trainer.params.tools: {value}")
        if kind == "error":
            raise ToolError(f"trainer.params.tools: {', '.join(self._functions)} cannot be imported: {value}")
        return value


def _error(text: str) -> ToolAnswer:
    return ToolAnswer(json.dumps({"error": text}, ensure_ascii=False), failed=True)
