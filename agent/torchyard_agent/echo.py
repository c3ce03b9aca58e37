"""Output of the ranks repeated on the agent's own, for `kubectl logs`; never waits for whoever reads it."""

from __future__ import annotations

import queue
import threading
from typing import List, Optional, TextIO

_WAITING_CHUNKS = 1000


class Echo:
    """Writes in a thread: a reader that stalls must not stall the agent. What does not fit is dropped and counted."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._queue: queue.Queue[Optional[str]] = queue.Queue(_WAITING_CHUNKS)
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="echo", daemon=True)
        self._thread.start()

    def say(self, rank: int, lines: List[str]) -> None:
        """Repeat `lines`, each with its rank in front."""
        text = "".join(f"[rank {rank}] {line}\n" for line in lines)
        if self._dropped:
            text = f"[agent] {self._dropped} lines left out here; the log files have them\n" + text
        try:
            self._queue.put_nowait(text)
            self._dropped = 0
        except queue.Full:
            self._dropped += len(lines)

    def close(self) -> None:
        """Write what waits, for at most a second."""
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(1.0)

    def _run(self) -> None:
        while True:
            text = self._queue.get()
            if text is None:
                return
            try:
                self._stream.write(text)
                self._stream.flush()
            except (OSError, ValueError):
                return
