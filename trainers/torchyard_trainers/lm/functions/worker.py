"""`python -m torchyard_trainers.lm.functions.worker`: calls functions of the user's for `rewards.py` and `tools.py`.

Imports nothing heavy: what the functions need, they import.
"""

import asyncio
import ctypes
import faulthandler
import inspect
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from torchyard_trainers.lm.channel import Channel
from torchyard_trainers.lm.functions.arguments import SignatureError, caller

_PR_SET_PDEATHSIG = 1
_MAX_TEXT = 4096  # characters of an error
_MAX_ANSWER = 16 << 10  # characters of what a tool answers
_SPARE_SECONDS = 1.0  # of a coroutine that does not end when it is cancelled

Answer = tuple[str, Any]


class _ImportFailed(Exception):  # noqa: N818 - an answer, not an error
    """A function that does not exist (`missing`), or whose module fails (`error`)."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer[1])
        self.answer = answer


def main(kind: str, functions: Sequence[str], channel: int, stack: int, seconds: float) -> None:
    """Import the functions, then answer calls until the other side closes the channel.

    Args:
        kind: `reward`: one function of completions; `tools`: functions that a model calls; `described tools`: and say
            first what each is.
        functions: MODULE:FUNCTION each.
        channel: file descriptor of a socket to the trainer.
        stack: file descriptor to which a call that takes too long writes its stack.
        seconds: limit of one call.
    """
    _end_with_parent()
    for descriptor in (channel, stack):
        os.set_inheritable(descriptor, False)
    trainer, process = Channel(socket.socket(fileno=channel)), os.getpid()
    try:
        act, ready, limit = {"reward": _reward, "tools": _tools, "described tools": _described_tools}[kind](
            functions, seconds
        )
    except _ImportFailed as error:
        trainer.send(error.answer)
        return
    trainer.send(("ready", ready))
    with suppress(EOFError, ConnectionError):  # the trainer has ended, or was killed
        while True:
            message = trainer.receive()
            # A thread in C ends the process, also while a function holds the interpreter's lock.
            faulthandler.dump_traceback_later(limit, exit=True, file=stack)
            answer = act(message)
            if os.getpid() != process:  # the function forked and both returned: one of them answers
                os._exit(0)
            faulthandler.cancel_dump_traceback_later()
            trainer.send(answer)


def _reward(functions: Sequence[str], seconds: float) -> tuple[Callable[[Any], Answer], Any, float]:
    """Return how completions are judged, and within how many seconds."""
    (name,) = functions
    function = _imported(name)
    try:
        call = caller(function, name.partition(":")[2])
    except SignatureError as error:
        raise _ImportFailed(("missing", f"in {name.partition(':')[0]}, {error}")) from error

    def act(message: Any) -> Answer:
        try:
            found = call(*message)
            answer = ("result", _plain(_waited(found, seconds) if inspect.isawaitable(found) else found))
            json.dumps(answer)  # as JSON has it, without a default: another type is the function's error
        except SignatureError as error:
            return "missing", str(error)
        except _LateError as error:
            return "late", error.where
        except Exception as error:  # noqa: BLE001 - whatever a user's function raises
            return "error", _described(error)
        return answer

    return act, None, seconds + _SPARE_SECONDS * inspect.iscoroutinefunction(function)


def _tools(functions: Sequence[str], seconds: float) -> tuple[Callable[[Any], Answer], Any, float]:
    """Return how calls of tools are answered, nothing else, and the limit of an answer."""
    tools = [_imported(name) for name in functions]

    async def waited(calls: Any) -> list[Answer]:
        return await asyncio.gather(*(_call_waiting(tools[index], arguments, seconds) for index, arguments in calls))

    def act(calls: Any) -> Answer:
        if all(inspect.iscoroutinefunction(tools[index]) for index, _ in calls):
            return "result", asyncio.run(waited(calls))
        return "result", [_call(tools[index], arguments) for index, arguments in calls]

    return act, None, seconds + _SPARE_SECONDS


def _described_tools(functions: Sequence[str], seconds: float) -> tuple[Callable[[Any], Answer], Any, float]:
    """Return what `_tools` does, and the description of each tool."""
    act, _, limit = _tools(functions, seconds)
    from transformers.utils import get_json_schema

    ready = []
    for name in functions:
        function = _imported(name)
        try:
            schema = get_json_schema(function)
        except Exception as error:
            problem = f"the tool {name} has no description of its arguments that can be read: {error}"
            raise _ImportFailed(("missing", problem)) from error
        ready.append({"schema": schema, "waits": inspect.iscoroutinefunction(function)})
    return act, ready, limit


def _call(tool: Callable[..., Any], arguments: dict[str, Any]) -> Answer:
    try:
        return "result", _text(tool(**arguments))
    except Exception as error:  # noqa: BLE001 - the model sees what its call did
        return "error", _short(error)


async def _call_waiting(tool: Callable[..., Any], arguments: dict[str, Any], seconds: float) -> Answer:
    try:
        return "result", _text(await asyncio.wait_for(tool(**arguments), seconds))
    except TimeoutError:
        return "late", None
    except Exception as error:  # noqa: BLE001 - the model sees what its call did
        return "error", _short(error)


def _text(value: Any) -> str:
    """Return what a tool answers: a text as it is, other values as JSON.

    Raises:
        ValueError: it is too long.
    """
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    if len(text) > _MAX_ANSWER:
        raise ValueError(f"an answer of {len(text)} characters, at most {_MAX_ANSWER} are possible")
    return text


class _LateError(Exception):
    """A coroutine that took too long."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.where = where


def _waited(found: Awaitable[Any], seconds: float) -> Any:
    async def waited() -> Any:
        return await asyncio.wait_for(found, seconds)

    try:
        return asyncio.run(waited())
    except TimeoutError as error:
        cause: BaseException = error.__cause__ or error
        raise _LateError(_line(cause, skipped=("asyncio",))) from error


def _imported(function: str) -> Callable[..., Any]:
    """Return a function.

    Raises:
        _ImportFailed: it does not exist, or its module fails.
    """
    path, _, name = function.partition(":")
    try:
        module = import_module(path)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{path}.".startswith(f"{error.name}."):
            where = "set workingDir to its folder, or add the folder to PYTHONPATH"
            raise _ImportFailed(("missing", f"there is no module {error.name!r}; {where}")) from error
        raise _ImportFailed(("error", _described(error))) from error
    act = getattr(module, name, None)
    if not callable(act):
        raise _ImportFailed(("missing", f"{path} has no function {name!r}"))
    found: Callable[..., Any] = act
    return found


def _plain(found: Any) -> Any:
    """Convert arrays and tensors to lists, so that the trainer needs no package of the user's."""
    if hasattr(found, "tolist"):
        found = found.tolist()
    if isinstance(found, list | tuple):
        return [each.item() if hasattr(each, "item") else each for each in found]
    return found


def _described(error: BaseException) -> str:
    """Return type, message and line of an error; print its traceback to the log."""
    traceback.print_exception(error)
    line = _line(error)
    return f"{_short(error)}{f' at {line}' if line else ''}"


def _short(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + '…'}"


def _line(error: BaseException, *, skipped: Sequence[str] = ()) -> str:
    """Return file and line in which an error was raised, outside some packages."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [each for each in frames if not any(f"/{name}/" in each.filename for name in skipped)]
    last = (outside or frames)[-1:]
    return f"{last[0].filename}:{last[0].lineno}" if last else ""


KINDS = {"reward": _reward, "tools": _tools, "described tools": _described_tools}


def _end_with_parent() -> None:
    """Have the kernel end this process when the trainer is killed; on systems without that, its closed channel does."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    # What functions print belongs in the log, like everything that the trainer itself prints.
    os.dup2(2, 1)
    main(sys.argv[1], sys.argv[2].split(","), int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
