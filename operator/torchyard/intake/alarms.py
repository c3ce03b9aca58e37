"""When polls have been held long enough: those that are due at about the same time are woken together.

A timer for each would wake the process for each: most of what an answer costs is then the way there.
"""

import asyncio
import math


class Alarms:
    """Futures by the moment they are to be woken.

    Args:
        tick: seconds between two such moments.
    """

    def __init__(self, tick: float) -> None:
        self._tick = tick
        self._due: dict[int, set[asyncio.Future[None]]] = {}

    def set(self, sleeper: asyncio.Future[None], seconds: float) -> set[asyncio.Future[None]]:
        """Wake it when `seconds` are over, at most a tick later; discard it from the result when it needs no waking."""
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
    """Let it go on, if nobody has yet."""
    if not sleeper.done():
        sleeper.set_result(None)
