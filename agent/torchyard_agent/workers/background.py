"""Slow work on disks that belong to others, one piece after the other, in a thread that the agent's loop does not meet.

A claim may be a network file system, which takes seconds for a file or hangs.
"""

from __future__ import annotations

import logging
import queue
import threading
from typing import Callable, Optional

MOST_PENDING = 4

logger = logging.getLogger(__name__)


class Background:
    """Runs pieces of work in their order; its thread begins with the first one.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: queue.Queue[Optional[Callable[[], None]]] = queue.Queue(MOST_PENDING)
        self._thread: Optional[threading.Thread] = None

    def begin(self, work: Callable[[], None]) -> bool:
        """Queue a piece of work and return at once; return False if too many are pending, and leave it out."""
        if self._thread is None:
            # A daemon: a disk that hangs must not keep the pod from ending.
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        try:
            self._work.put_nowait(work)
        except queue.Full:
            return False
        return True

    def finish(self, seconds: float) -> bool:
        """Return whether all that was queued is done, waiting at most `seconds`; nothing may be queued afterwards."""
        if self._thread is None:
            return True
        try:
            self._work.put(None, timeout=seconds)
        except queue.Full:
            return False
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            work = self._work.get()
            if work is None:
                return
            try:
                work()
            except Exception:
                logger.exception("%s", self._name)
