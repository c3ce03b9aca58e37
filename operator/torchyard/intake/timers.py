"""Timers of long polls: polls that are due at about the same time are answered together.

With one timer per poll the process would wake up for each, which costs more than the answer.
"""

import asyncio
import math


class Timers:
    """Futures by the time at which they are resolved.

    Args:
        tick: seconds between two such times.
    """

    def __init__(self, tick: float) -> None:
        self._tick = tick
        self._due: dict[int, set[asyncio.Future[None]]] = {}

    def set(self, sleeper: asyncio.Future[None], seconds: float) -> set[asyncio.Future[None]]:
        """Resolve a future after `seconds`, at most a tick later; discard it from the result to cancel."""
        loop = asyncio.get_running_loop()
        moment = math.ceil((loop.time() + seconds) / self._tick)
        if moment not in self._due:
            self._due[moment] = set()
            loop.call_at(moment * self._tick, self._ring, moment)
        self._due[moment].add(sleeper)
        return self._due[moment]

    def _ring(self, moment: int) -> None:
        for sleeper in self._due.pop(moment):
            wake(sleeper)


def wake(sleeper: asyncio.Future[None]) -> None:
    """Resolve a future unless it is done."""
    if not sleeper.done():
        sleeper.set_result(None)
