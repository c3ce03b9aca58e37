"""A keyed work queue with the semantics of client-go, for one event loop.

A key is queued at most once, is given to one worker at a time, and is queued again if it was added while it was
processed. Each key has its own exponential back-off after failures.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
BASE_SECONDS = 0.05
MAX_SECONDS = 60.0


class Closed(Exception):  # noqa: N818 -- not a fault: the end of the work
    """The queue was shut down and is empty."""


class WorkQueue(Generic[K]):
    """Keys that are to be reconciled.

    Args:
        base: delay after the first failure of a key, seconds; it doubles with each further one.
        most: longest delay after a failure, seconds.
        jitter: drawn once per failure, a factor in [0, 1); the delay grows by up to half of itself.
    """

    def __init__(
        self, *, base: float = BASE_SECONDS, most: float = MAX_SECONDS, jitter: Callable[[], float] = random.random
    ) -> None:
        self._base, self._most, self._jitter = base, most, jitter
        self._waiting: deque[K] = deque()
        self._dirty: set[K] = set()
        self._processing: set[K] = set()
        self._failures: dict[K, int] = {}
        self._delayed: dict[K, asyncio.TimerHandle] = {}
        self._added = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        """Return the number of keys that are due, without those being processed."""
        return len(self._waiting)

    def add(self, key: K) -> None:
        """Queue a key for the next free worker."""
        if self._closed or key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._processing:
            self._waiting.append(key)
            self._added.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Queue a key in `seconds`; of several delays of one key the earliest applies."""
        if self._closed:
            return
        if seconds <= 0:
            self.add(key)
            return
        loop = asyncio.get_running_loop()
        earlier = self._delayed.get(key)
        if earlier is not None:
            if earlier.when() <= loop.time() + seconds:
                return
            earlier.cancel()
        self._delayed[key] = loop.call_later(seconds, self._mature, key)

    def fail(self, key: K, at_least: float | None = None) -> float:
        """Queue a failed key after its back-off; return the delay in seconds."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        delay = min(self._most, self._base * 2.0 ** min(count, 60))
        delay = max(at_least or 0.0, delay) * (1.0 + self._jitter() / 2)
        self.add_after(key, delay)
        return delay

    def failures(self, key: K) -> int:
        """Return the number of consecutive failures of the key."""
        return self._failures.get(key, 0)

    def succeed(self, key: K) -> None:
        """Forget the failures of a key."""
        self._failures.pop(key, None)

    async def get(self) -> K:
        """Return the next key; `done` must follow.

        Raises:
            Closed: the queue was shut down and is empty.
        """
        while not self._waiting:
            if self._closed:
                raise Closed
            self._added.clear()
            await self._added.wait()
        key = self._waiting.popleft()
        self._dirty.discard(key)
        self._processing.add(key)
        return key

    def done(self, key: K) -> None:
        """Mark a key as processed; it is due again if it was added while it was processed."""
        self._processing.discard(key)
        if key in self._dirty:
            self._waiting.append(key)
            self._added.set()

    def close(self, *, drop: bool = False) -> None:
        """Take no more keys; workers get the keys that are due (with `drop` none), then `Closed`."""
        self._closed = True
        if drop:
            self._waiting.clear()
            self._dirty.clear()
        for timer in self._delayed.values():
            timer.cancel()
        self._delayed.clear()
        self._added.set()

    def _mature(self, key: K) -> None:
        with suppress(KeyError):
            del self._delayed[key]
        self.add(key)
