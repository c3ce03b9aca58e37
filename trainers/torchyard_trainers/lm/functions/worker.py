"""`python -m torchyard_trainers.lm.functions.worker`: calls a user's reward function for `rewards.py`.

Imports nothing heavy: what the function needs, it imports.
"""

import ctypes
import faulthandler
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

from torchyard_trainers.lm.channel import Channel
from torchyard_trainers.lm.functions.arguments import SignatureError, caller

_PR_SET_PDEATHSIG = 1
_MAX_TEXT = 4096  # characters of an error


def main(function: str, channel: int, stack: int, seconds: float) -> None:
    """Import the function, then answer calls until the other side closes the channel.

    Args:
        function: MODULE:FUNCTION.
        channel: file descriptor of a socket to the trainer.
        stack: file descriptor to which a call that takes too long writes its stack.
        seconds: limit of one call.
    """
    _end_with_parent()
    for descriptor in (channel, stack):
        os.set_inheritable(descriptor, False)
    trainer, process = Channel(socket.socket(fileno=channel)), os.getpid()
    act, trouble = _imported(function)
    trainer.send(trouble or ("ready", None))
    if act is None:
        return
    with suppress(EOFError):
        while True:
            arguments = trainer.receive()
            # A thread in C ends the process, also while the function holds the interpreter's lock.
            faulthandler.dump_traceback_later(seconds, exit=True, file=stack)
            try:
                answer = ("result", _plain(act(*arguments)))
                json.dumps(answer)  # as JSON has it, without a default: another type is the function's error
            except SignatureError as error:
                answer = ("missing", str(error))
            except Exception as error:  # noqa: BLE001 - whatever a user's function raises
                answer = ("error", _described(error))
            if os.getpid() != process:  # the function forked and both returned: one of them answers
                os._exit(0)
            faulthandler.cancel_dump_traceback_later()
            trainer.send(answer)


def _imported(function: str) -> tuple[Callable[..., Any] | None, tuple[str, str] | None]:
    """Return the function, or what is wrong: `missing` if it does not exist, `error` if its module fails."""
    path, _, name = function.partition(":")
    try:
        module = import_module(path)
    except Exception as error:  # noqa: BLE001 - a module may raise anything
        if isinstance(error, ModuleNotFoundError) and error.name and f"{path}.".startswith(f"{error.name}."):
            where = "set workingDir to its folder, or add the folder to PYTHONPATH"
            return None, ("missing", f"there is no module {error.name!r}; {where}")
        return None, ("error", _described(error))
    act = getattr(module, name, None)
    if not callable(act):
        return None, ("missing", f"{path} has no function {name!r}")
    try:
        return caller(act, name), None
    except SignatureError as error:
        return None, ("missing", f"in {path}, {error}")


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
    frames = traceback.extract_tb(error.__traceback__)
    line = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    text = str(error)
    return f"{type(error).__name__}: {text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + '…'}{line}"


def _end_with_parent() -> None:
    """Have the kernel end this process when the trainer is killed; on systems without that, its closed channel does."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    # What the function prints belongs in the log, like everything that the trainer itself prints.
    os.dup2(2, 1)
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
