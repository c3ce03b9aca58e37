"""What a Python process knows about its own end: `failure.<rank>.<pid>.json`, if an exception ends it.

An uncaught exception ends a process: the interpreter reports it to `sys.excepthook`, and leaves it in `sys.last_value`
where the program has another hook. So does an exception whose handler calls `sys.exit`. One that was handled, and
perhaps printed, leaves no file. The text of `sys.exit("text")` does. Nothing here may break a user's program.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import time
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Dict, NoReturn, Optional, Type

from torchyard_agent.files import ends, try_write_json
from torchyard_agent.workers.printed import is_wrapper

_QUOTED, _MESSAGE = 8000, 2000
_MOST_FAILURES = 100  # files of one pod and round: a driver may start programs that fail for ever
_MEMBERS = 3
_TRACEBACK = "Traceback (most recent call last):"
_NO_END = (SystemExit, KeyboardInterrupt, GeneratorExit)


class _Process:
    """The process that is watched; a fork of it is another one."""

    def __init__(self) -> None:
        self.pid, self.started = os.getpid(), time.time()
        self.written = False
        self.exiting: Optional[Dict[str, Any]] = None  # of a handler that called `sys.exit`


_process: Optional[_Process] = None


def watch() -> None:
    """Have this process write a failure file if an exception ends it."""
    global _process  # noqa: PLW0603 - one a process
    _process = _Process()
    _chain_excepthook()
    _chain_exit()
    atexit.register(_look_at_the_end)


def write_failure(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
    """Write `failure.<rank>.<pid>.json`. The program's own `failure.<rank>.json` takes precedence."""
    with contextlib.suppress(Exception):  # any method of an exception may be the program's own
        _write(_document(kind, error, trace))


def _write(document: Dict[str, Any]) -> None:
    run_dir = Path(os.environ["TORCHYARD_RUN_DIR"])
    path = run_dir / f"failure.{document['rank']}.{os.getpid()}.json"
    if _process is not None:
        _process.written = True
    if sum(1 for _ in run_dir.glob("failure.*.json")) < _MOST_FAILURES:
        try_write_json(path, document)


def _document(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> Dict[str, Any]:
    import traceback

    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return {
        **_facts(),
        "exception": name,
        "message": _quoted_end(_message(error)) if is_wrapper(name) else _message(error)[:_MESSAGE],
        "traceback": ends("".join(traceback.format_exception(kind, error, trace)), _QUOTED),
    }


def _facts() -> Dict[str, Any]:
    return {
        "rank": int(os.environ.get("RANK") or os.environ.get("NODE_RANK") or "0"),
        "pid": os.getpid(),
        "parent": os.getppid(),
        "started": _process.started if _process is not None else 0.0,
        "time": time.time(),
    }


def _quoted_end(text: str) -> str:
    """Return the traceback that a wrapper quotes, whose exception comes last; without one, the message's beginning."""
    if _TRACEBACK not in text:
        return text[:_MESSAGE]
    quoted = text[text.rindex(_TRACEBACK) :]
    return quoted if len(quoted) <= _QUOTED else quoted[:100] + "\n" + quoted[-_QUOTED:]


def _message(error: BaseException) -> str:
    """Return the text of the exception; for a group, also those of its first members."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - it is the program's own
        text = f"<str() of {type(error).__qualname__} failed>"
    members = getattr(error, "exceptions", None)
    if isinstance(members, tuple) and members and isinstance(members[0], BaseException):
        shown = "; ".join(f"{type(member).__qualname__}: {_message(member)}" for member in members[:_MEMBERS])
        return f"{text}: {shown}"
    return text


def _chain_excepthook() -> None:
    previous, owner = sys.excepthook, os.getpid()

    def hook(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
        if os.getpid() == owner and not issubclass(kind, KeyboardInterrupt) and not _is_called_by_program():
            write_failure(kind, error, trace)
        previous(kind, error, trace)

    sys.excepthook = hook


def _is_called_by_program() -> bool:
    """Return whether a program that goes on has called the hook to print an exception that it has handled.

    The interpreter calls a hook when nothing else runs any more.
    """
    outermost = sys._getframe()  # noqa: SLF001 - the only way
    while outermost.f_back is not None:
        outermost = outermost.f_back
    return outermost.f_code.co_name in {"<module>", "_bootstrap"}  # of the main thread, of another one


def _chain_exit() -> None:
    leave, owner = sys.exit, os.getpid()

    @functools.wraps(leave)
    def sys_exit(status: Any = None, /) -> NoReturn:
        with contextlib.suppress(Exception):
            if os.getpid() == owner and _process is not None and _is_main_thread():
                _process.exiting = _reason(status, sys._getframe(1))  # noqa: SLF001
        leave(status)

    vars(sys)["exit"] = sys_exit


def _reason(status: Any, caller: FrameType) -> Optional[Dict[str, Any]]:
    """Return a failure file for a call of `sys.exit`: its text, or else the exception that its caller handles."""
    code, error = _exit_code(status), sys.exc_info()[1]
    if isinstance(status, str) and status.strip():
        return {**_facts(), "exitCode": code, "message": status[:_MESSAGE]}
    trace = error.__traceback__ if error is not None else None
    if error is None or trace is None or trace.tb_frame is not caller or isinstance(error, _NO_END) or not code:
        return None  # a function that a handler calls has another frame
    return {**_document(type(error), error, trace), "exitCode": code}


def _exit_code(status: Any) -> int:
    return 0 if status is None else status & 0xFF if isinstance(status, int) else 1


def _is_main_thread() -> bool:
    import threading

    return threading.current_thread() is threading.main_thread()


def _look_at_the_end() -> None:
    process = _process
    if process is None or process.pid != os.getpid() or process.written:
        return
    error = getattr(sys, "last_value", None)
    if isinstance(error, BaseException) and not isinstance(error, _NO_END):
        write_failure(type(error), error, error.__traceback__)
    elif process.exiting is not None:
        _write(process.exiting)
