"""Follow the log files of a run's ranks."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from torchyard.api.files import open_regular
from torchyard.api.formatting import clean
from torchyard.client.backend import LogLine

MAX_LINE_BYTES = 1024 * 1024
NAMED = re.compile(r"rank-(\d+)\.log(\.\d+)?$")


def log_files(pods: Path, rank: int | None) -> Iterator[tuple[Path, int]]:
    """Yield (path, rank) of every log of every pod that the run has had, rotated files before their successors."""
    for path in sorted(pods.glob("*/logs/rank-*.log*"), reverse=True):
        named = NAMED.fullmatch(path.name)
        if named and (rank is None or int(named[1]) == rank):
            yield path, int(named[1])


class RankLog:
    """One log file, and the position up to which it was read."""

    def __init__(self, path: Path, rank: int) -> None:
        self.path = path
        self.rank = rank
        self.pod = clean(path.parent.parent.name)
        self.offset = 0
        try:
            self.modified = path.stat().st_mtime
        except OSError:
            self.modified = 0.0

    def read(self, *, last: bool) -> Iterator[LogLine]:
        """Yield lines written since the last call; a line longer than `MAX_LINE_BYTES` comes in pieces.

        A line without an end is left for the next call unless this is the `last` one.
        """
        try:
            file = open_regular(self.path)
        except OSError:
            return
        with file:
            if os.fstat(file.fileno()).st_size < self.offset:  # truncated
                self.offset = 0
            file.seek(self.offset)
            while line := file.readline(MAX_LINE_BYTES):
                if not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES and not last:
                    return
                self.offset += len(line)
                yield LogLine(rank=self.rank, pod=self.pod, text=clean(line.decode("utf-8", "replace")))
