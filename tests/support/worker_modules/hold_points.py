"""Stops a worker at an exact moment, seen from outside the program: at one of its operations on files.

Python tells audit hooks what it is about to do to the file system. A moment is a regular expression over
`EVENT PATH`, e.g. `os.rename /x/.step-00000006`; the first operation that fits is never carried out.
"""

import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

WRITES = frozenset({"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree"})


def on_write(act: Callable[[str], None]) -> None:
    """Call `act` with `EVENT PATH` before each change of the file system by this process, for ever."""

    def hook(event: str, arguments: tuple) -> None:
        if event not in WRITES or not isinstance(arguments[0], str | os.PathLike):
            return
        if event == "open" and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
        act(f"{event} {os.fspath(arguments[0])}")

    sys.addaudithook(hook)


def hold_at(moment: str, marker: Path) -> None:
    """At `moment`, touch `marker` and stand still; the process that waits for the marker decides what comes next."""
    pattern = re.compile(moment)
    held = threading.Lock()

    def hold(operation: str) -> None:
        if pattern.match(operation) and held.acquire(blocking=False):
            marker.touch()
            threading.Event().wait()

    on_write(hold)


def die_at(number: int, below: Path) -> None:
    """Die of SIGKILL at the `number`th (from 0) operation on files below a folder."""
    left = number

    def die(operation: str) -> None:
        nonlocal left
        if str(below) in operation:
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

    on_write(die)
