"""Repeat the output of the ranks on that of the agent, for `kubectl logs`, without waiting for a reader."""

from __future__ import annotations

import threading
from collections import deque
from typing import BinaryIO, Deque, List

WAITING_BYTES = 4 * 1024 * 1024
_CLOSE_SECONDS = 1.0


class LogForwarder:
    """Writes in a thread: a reader that stalls must not stall the agent. What does not fit is dropped and counted."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._changed = threading.Condition()
        self._waiting: Deque[bytes] = deque()
        self._bytes = 0  # queued, and being written
        self._dropped = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="echo", daemon=True)
        self._thread.start()

    def say(self, rank: int, lines: List[str]) -> None:
        """Repeat `lines`, each with its rank in front."""
        if not lines:
            return
        left_out = f"[agent] {self._dropped} lines left out here; the log files have them\n" if self._dropped else ""
        data = (left_out + "".join(f"[rank {rank}] {line}\n" for line in lines)).encode("utf-8", "replace")
        with self._changed:
            if self._bytes + len(data) > WAITING_BYTES:
                self._dropped += len(lines)
                return
            self._dropped = 0
            self._waiting.append(data)
            self._bytes += len(data)
            self._changed.notify()

    def close(self) -> None:
        """Write the queued output, for at most a second."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                data = self._waiting.popleft()
            try:
                self._stream.write(data)
                self._stream.flush()
            except (OSError, ValueError):  # the reader is gone; the log files have everything
                return
            with self._changed:
                self._bytes -= len(data)
