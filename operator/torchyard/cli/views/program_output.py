"""The output of a run's program as it is written: the last lines for a view, all of them for a stream.

A view leaves out what is written faster than a person could read, and reports how much. A stream copies everything: its
reader may be a file or another program. Only what has left the log by then is missing, and the stream says so.
"""

import contextlib
import os
import select
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torchyard.api.files import open_regular
from torchyard.api.formatting import clean
from torchyard.api.launch import local_procs
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.values import size
from torchyard.client.local_logs import MAX_LINE_BYTES

POLL_SECONDS = 0.1
READ_BYTES = 128 * 1024
"""Read of all ranks together at each look: a view reads about a megabyte a second."""
KEPT_LINES = 200
TAIL_BYTES = 8192  # of what was written before the view began
BAR_SECONDS = 5.0  # between two lines of a progress bar, which does not end its line
BAR_BYTES = 4096
LONGEST_LINE = 64 * 1024  # of a view; a longer one comes in pieces
RECOGNISED_BYTES = 256  # the end of what was read, to be found at the end of a log that was turned over
MOST_PIPED = 4096  # a write of more is not atomic, and another writer of the same pipe may tear it


class OutputLine(NamedTuple):
    """One line of a rank, without control characters."""

    rank: int
    text: str


class ProgramOutput:
    """Reads the logs of a run's ranks, a bounded amount at each look.

    Args:
        pods: folder with a folder for each pod.
        name: of the run, for the hint where everything is.
        complete: read everything, over as many looks as it takes; by default, what is older than one look can read is
            left out.

    Attributes:
        behind: whether the last look has left something to be read by the next one.
    """

    def __init__(self, pods: Path, name: str, *, complete: bool = False) -> None:
        self.behind = False
        self._pods = pods
        self._name = name
        self._complete = complete
        self._logs: dict[Path, _RankLog] = {}
        self._lines: deque[OutputLine] = deque(maxlen=KEPT_LINES)
        self.look(old=True)

    def look(self, *, old: bool = False, last: bool = False) -> list[OutputLine]:
        """Return the lines that are new.

        Args:
            old: what is there now was written before this run is watched; only its last lines are read.
            last: nothing more will be written, so that a line without an end counts.
        """
        for path in sorted(self._pods.glob("*/logs/rank-*.log")):
            if path not in self._logs:
                self._logs[path] = _RankLog(path, old=old, complete=self._complete)
        logs = [log for log in self._logs.values() if log.behind() or last]
        found: list[OutputLine] = []
        for log in logs:
            missing, lines = log.read(READ_BYTES // len(logs), last=last)
            if missing:
                lines.insert(0, f"[{missing} left out; `torchyard logs {self._name}` has what is kept]")
            found += [OutputLine(log.rank, line) for line in lines]
        self.behind = any(log.behind() for log in logs)
        self._lines.extend(found)
        return found

    def bars(self, every: float = 0.0) -> list[OutputLine]:
        """Return what stands in lines that have not ended, of each rank at most once in `every` seconds."""
        now = time.monotonic()
        return [OutputLine(log.rank, text) for log in self._logs.values() if (text := log.bar(now, every))]

    def tail(self) -> list[OutputLine]:
        """Return the last lines of all ranks, in the order in which they were read."""
        return [*self._lines, *self.bars()]


class OutputStream:
    """Copies the output of a run to a descriptor, in a thread: a reader that stalls must not delay the run.

    Args:
        output: that has no other reader, and is complete.
        descriptor: to write to.
        prefixed: whether each line names its rank; it begins by itself once a second rank writes.
    """

    def __init__(self, output: ProgramOutput, descriptor: int, *, prefixed: bool) -> None:
        self._output = output
        self._descriptor: int | None = descriptor
        self._prefixed = prefixed
        self._ranks: set[int] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="program-output", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Copy what is left, and return when it is written."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        over = False
        while not over and self._descriptor is not None:
            over = self._over.wait(POLL_SECONDS)
            self._write(self._output.look())
            while self._output.behind and self._descriptor is not None:
                self._write(self._output.look())
            self._write([*self._output.look(last=over), *self._output.bars(BAR_SECONDS)])

    def _write(self, lines: Sequence[OutputLine]) -> None:
        self._ranks.update(line.rank for line in lines)
        self._prefixed = self._prefixed or len(self._ranks) > 1
        pending = b""
        for line in lines:
            head = f"[rank {line.rank}] " if self._prefixed else ""
            data = f"{head}{line.text}\n".encode("utf-8", "replace")
            if pending and len(pending) + len(data) > MOST_PIPED:
                self._put(pending)
                pending = b""
            pending += data
        self._put(pending)

    def _put(self, data: bytes) -> None:
        while data and self._descriptor is not None:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:  # another process has made the other end non-blocking
                select.select([], [self._descriptor], [])
            except OSError:  # the reader is gone, which does not concern the run
                self._descriptor = None


class _RankLog:
    """One log file, read on from where it was left."""

    def __init__(self, path: Path, *, old: bool, complete: bool) -> None:
        self.rank = int(path.stem.removeprefix("rank-"))
        self._path = path
        self._complete = complete
        self._inode, written = self._stat()
        self._offset = max(0, written - TAIL_BYTES) if old else 0
        self._torn = self._offset > 0  # begins in the middle of a line
        self._partial = b""
        self._end = b""  # of what was read
        self._missing = ""
        self._barred = float("-inf")

    def _stat(self) -> tuple[int, int]:
        try:
            status = self._path.stat()
        except OSError:
            return 0, 0
        return status.st_ino, status.st_size

    def behind(self) -> bool:
        """Return whether there is something to read."""
        inode, written = self._stat()
        if inode != self._inode or written < self._offset:  # a new pod of the same name, or a file begun again
            self._begin_again(same=inode == self._inode)
            self._inode, self._offset, self._torn = inode, 0, False
        return written > self._offset

    def _begin_again(self, *, same: bool) -> None:
        """Drop a line that will not be continued, and note what is missing if the agent has cut the `same` log."""
        if same and self._complete:
            with contextlib.suppress(OSError), open_regular(self._path.with_suffix(".log.1")) as file:
                file.seek(-len(self._end), os.SEEK_END)
                if file.read() == self._end:
                    return  # everything was read
            self._missing = "output that was written faster than it could be copied is"
        self._partial = b""

    def read(self, most: int, *, last: bool) -> tuple[str, list[str]]:
        """Return what was left out before, empty if nothing was, and whole lines."""
        missing, self._missing = self._missing, ""
        skipped = 0 if self._complete else max(0, self._stat()[1] - self._offset - most)
        if skipped:
            self._offset += skipped
            self._partial, self._torn = b"", True
            missing = f"{size(skipped)} of output"
        try:
            with open_regular(self._path) as file:
                file.seek(self._offset)
                data = file.read(most)
        except OSError:
            return missing, []
        self._offset += len(data)
        self._end = (self._end + data)[-RECOGNISED_BYTES:]
        *whole, self._partial = (self._partial + data).split(b"\n")
        if self._torn and whole:
            del whole[0]
            self._torn = False
        if b"\r" in self._partial[:-1]:
            self._partial = self._partial[-BAR_BYTES:]  # a progress bar: only what it shows now matters
        longest = MAX_LINE_BYTES if self._complete else LONGEST_LINE
        if self._partial and (last or len(self._partial) > longest):
            whole.append(self._partial)
            self._partial = b""
        return missing, [_shown(line) for line in whole]

    def bar(self, now: float, every: float) -> str:
        """Return what a progress bar shows, "" if it was returned less than `every` seconds ago."""
        if b"\r" not in self._partial or (every and now - self._barred < every):
            return ""
        if every:
            self._barred = now
        return _shown(self._partial)


def several_ranks(spec: TrainingJobSpec) -> bool:
    """Return whether a job has more than one rank."""
    procs = local_procs(spec)
    return spec.nodes * procs > 1


def _shown(line: bytes) -> str:
    return clean(line.decode("utf-8", "replace"))
