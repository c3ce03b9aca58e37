"""Files of pods that the controller's host shows too: logs as they grow, and the newest report of each rank.

Commands about a run read files. With these copies, the output and the ranks of all hosts are where the controller is.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from torchyard.hosts.wire import FilePart
from torchyard.local.run import write_atomic

PART_BYTES = 1024 * 1024
MOST_BYTES = 3 * 1024 * 1024
"""Of one message."""
MAX_COPY_BYTES = 64 * 1024 * 1024
_LOG = re.compile(r"[a-z0-9-]{1,63}/logs/(rank-[0-9]{1,6}|pod|agent)\.log")
_REPORT = re.compile(r"[a-z0-9-]{1,63}/run/report\.[0-9]{1,6}\.json")


class Outgoing:
    """What is new in the files of a node's pods, since the last look.

    Args:
        pods: folder with a folder a pod.
    """

    def __init__(self, pods: Path) -> None:
        self._pods = pods
        self._sent: dict[str, tuple[int, int]] = {}  # inode, and bytes of a log or time of a report

    def again(self) -> None:
        """Send everything again: to a controller that may have none of it."""
        self._sent.clear()

    def look(self) -> tuple[FilePart, ...]:
        """Return what is new, at most as much as fits into a message."""
        left, found = MOST_BYTES, []
        for part in self._news():
            found.append(part)
            left -= len(part.data)
            if left <= 0:
                break
        return tuple(found)

    def _news(self) -> Iterator[FilePart]:
        for path in sorted([*self._pods.glob("*/logs/*.log"), *self._pods.glob("*/run/report.*.json")]):
            name = path.relative_to(self._pods).as_posix()
            with contextlib.suppress(OSError):
                if _LOG.fullmatch(name):
                    yield from self._of_log(name, path)
                elif _REPORT.fullmatch(name):
                    status = path.stat()
                    if self._sent.get(name) != (mark := (status.st_ino, status.st_mtime_ns)):
                        self._sent[name] = mark
                        yield FilePart(name, 0, path.read_bytes()[:PART_BYTES])

    def _of_log(self, name: str, path: Path) -> Iterator[FilePart]:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            inode, offset = self._sent.get(name, (status.st_ino, 0))
            if inode != status.st_ino or status.st_size < offset:  # it was begun again
                offset = 0
            if status.st_size > offset:
                file.seek(offset)
                data = file.read(PART_BYTES)
                self._sent[name] = status.st_ino, offset + len(data)
                yield FilePart(name, offset, data)


def put(pods: Path, part: FilePart) -> None:
    """Write what a node sent; a name that is none of such a file, and a file that cannot be written, are left out."""
    if not (_LOG.fullmatch(part.path) or _REPORT.fullmatch(part.path)):
        return
    path = pods / part.path
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        if _REPORT.fullmatch(part.path):
            write_atomic(path, part.data)
        elif part.offset + len(part.data) <= MAX_COPY_BYTES:
            with path.open("r+b" if path.exists() else "w+b") as file:
                if part.offset == 0:
                    file.truncate(0)
                file.seek(part.offset)
                file.write(part.data)
