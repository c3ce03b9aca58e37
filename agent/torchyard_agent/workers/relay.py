"""Copy the output of a plain command into the log of its rank, through a pipe.

A shell may open `/dev/stderr` by name (`echo ... > /dev/stderr`). If that were the log itself, it would be emptied.
What torchrun starts has the log itself: it needs no process that copies, and rarely opens its streams by name.
"""

from __future__ import annotations

import os
import select
import threading
from pathlib import Path
from typing import Optional

from torchyard_agent.telemetry.output import DroppedOutput

_READ_BYTES = 1 << 16
_LAST_BYTES = 1 << 20
"""Read once the command has ended: as much as a pipe can hold. Processes that it has left may write for ever."""


class Relay:
    """Copies in a thread, from `started` until `finish` or until no process has the pipe.

    Args:
        log: to append to.
        run_dir: for a notice if the disk is full.

    Attributes:
        writing: descriptor of the end of the pipe that the command gets.
    """

    def __init__(self, log: Path, run_dir: Path) -> None:
        self._dropped = DroppedOutput(log, run_dir)
        self._lock = threading.Lock()
        self._reading, self.writing = os.pipe()
        self._ended, end = os.pipe()
        self._end: Optional[int] = end
        self._output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.set_blocking(self._reading, False)
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)

    def started(self) -> None:
        """Leave the writing end to the command, and copy what it writes."""
        os.close(self.writing)
        self._thread.start()

    def finish(self) -> None:
        """Return once everything is copied that was written before this call."""
        with self._lock:
            if self._end is not None:
                os.close(self._end)
                self._end = None
        if self._thread.ident is not None:  # a signal may end the round before the command has started
            self._thread.join()

    def _run(self) -> None:
        self._copy()
        self._dropped.report()

    def _copy(self) -> None:
        ended = False
        while not ended:
            ready, _, _ = select.select([self._reading, self._ended], [], [])
            ended = self._ended in ready
            left = _LAST_BYTES if ended else _READ_BYTES
            while left > 0:
                try:
                    data = os.read(self._reading, _READ_BYTES)
                except BlockingIOError:
                    break
                if not data:  # no process has the other end
                    return
                self._append(data)
                left -= len(data)

    def _append(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._output, data) :]
        except OSError:  # the disk is full: lines are dropped, and the program goes on
            self._dropped.is_some = True
        self._dropped.report()
