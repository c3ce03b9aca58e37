"""Follow the output of one rank in its log file: keep its last lines, and read metrics by pattern."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections import deque
from pathlib import Path
from typing import Deque, Dict, List

from torchyard_agent.telemetry.patterns import Patterns

KEPT_LINES = 200
_LINE_CHARACTERS = 1000
_CHUNK = 1 << 20
ROTATE_BYTES = 64 << 20
_STDERR_BYTES = 1 << 20
# A progress bar overwrites its line with a carriage return, or with as many backspaces as it printed characters.
_OVERWRITE = re.compile(rb"[\r\b]+")
# Colours and cursor movements (CSI), window titles and links (OSC).
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z^_])")
NO_PATTERNS = Patterns(())


def bound_stderr(descriptor: int = 2, most: int = _STDERR_BYTES) -> None:
    """Empty standard error once it exceeds `most` bytes, if it is a file: only a container runtime rotates it.

    Each failed round leaves a kilobyte of its launcher there. The agent's own lines are in `agent.log`, too.
    """
    with contextlib.suppress(OSError):
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode) and found.st_size > most:
            os.ftruncate(descriptor, 0)


class RankLog:
    """Follows `rank-<R>.log` from where it ends now.

    Attributes:
        lines: the last lines, without colours; of a line that was overwritten, what a terminal would show.
        matches: values of each matching line that was read by the last `follow` or `finish`, in order.
    """

    def __init__(self, log_dir: Path, rank: int, patterns: Patterns = NO_PATTERNS) -> None:
        self.path = log_dir / f"rank-{rank}.log"
        self.rank = rank
        self.lines: Deque[str] = deque(maxlen=KEPT_LINES)
        self.matches: List[Dict[str, float]] = []
        self._patterns = patterns
        self._partial = b""
        self._offset = self._size()

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def follow(self) -> List[str]:
        """Return whole lines written since the last call, at most a megabyte of them; update `matches`.

        The file is cut at `ROTATE_BYTES`: what a program writes faster than it is read is skipped.
        """
        self.matches = []
        size = self._size()
        if size < self._offset:  # it was truncated
            self._offset = 0
        if size == self._offset:
            return []
        if size > ROTATE_BYTES:
            self._skip_to_tail(size)
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read(_CHUNK)
        self._offset += len(data)
        if size > ROTATE_BYTES:
            self._rotate()
        *whole, self._partial = (self._partial + data).split(b"\n")
        lines = [self._take(line) for line in whole]
        self._match_updates()
        return lines

    def finish(self) -> List[str]:
        """Return the last lines, from no more than the last megabyte; one without an end counts."""
        self._skip_to_tail(self._size())
        lines = self.follow()
        if self._partial:
            lines.append(self._take(self._partial))
            self._partial = b""
        return lines

    def _take(self, line: bytes) -> str:
        """Keep a whole line and return it as a terminal would show it. The CR of a CR LF overwrites nothing."""
        updates = [_text(update) for update in _OVERWRITE.split(line) if update] or [""]
        for update in updates:
            self._match(update)
        self.lines.append(_ESCAPES.sub("", updates[-1]))
        return updates[-1]

    def _match_updates(self) -> None:
        """Match what a progress bar has overwritten already: it ends its line when it closes, hours later perhaps."""
        ended = self._partial.rstrip(b"\r\b")  # a carriage return at the very end may belong to a line feed
        *updates, last = _OVERWRITE.split(ended)
        for update in updates:
            self._match(_text(update))
        self._partial = (last + self._partial[len(ended) :])[-_LINE_CHARACTERS:]

    def _skip_to_tail(self, size: int) -> None:
        skipped = size - self._offset - _CHUNK
        if skipped > 0:
            self._offset += skipped
            self._partial = b"[%d bytes skipped] " % skipped

    def last(self, count: int, size: int) -> List[str]:
        """Return the last `count` lines, fewer if they do not fit into `size` bytes."""
        kept: List[str] = []
        for line in list(self.lines)[: -count - 1 : -1]:
            size -= len(line.encode()) + 1
            if size < 0:
                break
            kept.append(line)
        return kept[::-1]

    def _rotate(self) -> None:
        # The worker appends, so it continues at the new end; lines of the instant between copy and cut are lost.
        with contextlib.suppress(OSError):  # a full disk is all the more a reason to cut
            self._copy_tail(self.path.with_suffix(".log.1"))
        os.truncate(self.path, 0)
        self._offset = 0

    def _copy_tail(self, to: Path) -> None:
        with self.path.open("rb") as source, to.open("wb") as target:
            source.seek(max(0, self._size() - ROTATE_BYTES))
            left = ROTATE_BYTES  # counted: the worker may write as fast as this copies
            while left > 0:
                data = source.read(min(left, _CHUNK))
                target.write(data)
                left = left - len(data) if data else 0

    def _match(self, line: str) -> None:
        if self._patterns is not NO_PATTERNS:
            values = self._patterns.values(_ESCAPES.sub("", line))
            if values:
                self.matches.append(values)


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace")[:_LINE_CHARACTERS]
