"""Standard output and error of a worker that writes into its log: a full disk loses lines there and stops no program.

With plain torchrun these go to a terminal, where `print` cannot fail for lack of space.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import io
import os
import sys
from pathlib import Path
from typing import Any

from torchyard_agent.files import try_write_json

LITTLE_SPACE = 16 * 1024
"""Bytes; with less, a disk counts as full."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def free_space(folder: Path) -> float:
    """Return the free bytes of the disk of a folder, infinity if they are not known."""
    try:
        disk = os.statvfs(str(folder))
    except OSError:
        return float("inf")
    return disk.f_bavail * disk.f_frsize


def full_disk_notice(folder: str) -> str:
    """Return the warning for the status; one text for agent and workers, so that it appears once."""
    return (
        f"the disk of {folder} is full: training continues, output and reports are missing, and the step shown is the "
        "last one that could be reported; free some space"
    )


def tolerate_full_disk(log: Path, run_dir: Path) -> None:
    """Replace `sys.stdout` and `sys.stderr` where they are the file `log`; leave a user's own files alone.

    Args:
        log: `rank-<R>.log` in the folder that a notice names.
        run_dir: for the notice.
    """
    dropped = DroppedOutput(log, run_dir)
    atexit.register(dropped.report)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if os.path.samestat(os.fstat(stream.fileno()), log.stat()):
                replaced = _reopened(stream, _LogFile(stream.fileno(), stream.name, dropped))
                setattr(sys, name, replaced)
                setattr(sys, f"__{name}__", replaced)


class DroppedOutput:
    """Reports once that output was dropped.

    A full disk may not take the notice either, so call `report` after each write and at the end.

    Args:
        log: what the output was for; the notice names its folder.
        run_dir: for the notice.

    Attributes:
        is_some: whether something was dropped.
    """

    def __init__(self, log: Path, run_dir: Path) -> None:
        self.is_some = self._reported = False
        self._folder, self._notice = str(log.parent), run_dir / f"notice.{log.stem}.json"

    def report(self) -> None:
        """Leave a notice if there is something to report."""
        if self.is_some and not self._reported:
            self._reported = try_write_json(self._notice, {"notices": [full_disk_notice(self._folder)]})


class _LogFile(io.FileIO):
    """A stream to the descriptor of the log; what does not fit on its disk is dropped."""

    def __init__(self, descriptor: int, name: str, dropped: DroppedOutput) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.name = name
        self._dropped = dropped

    def write(self, data: Any) -> int:
        """Write, and return the length of all data, also of data that was dropped."""
        try:
            written = super().write(data)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            self._dropped.is_some, written = True, memoryview(data).nbytes
        self._dropped.report()
        return written


def _reopened(stream: Any, raw: _LogFile) -> io.TextIOWrapper:
    """Return a stream like `stream` on `raw`: as unbuffered (`python -u`) and with the same encoding."""
    stream.flush()
    unbuffered = isinstance(stream.buffer, io.RawIOBase)
    buffer: Any = raw if unbuffered else io.BufferedWriter(raw)
    replaced = io.TextIOWrapper(
        buffer,
        encoding=stream.encoding,
        errors=stream.errors,
        newline="\n",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
    replaced.mode = "w"  # type: ignore[misc]  # as Python sets it
    return replaced
