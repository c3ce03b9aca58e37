"""One accepted connection, and token buckets: what admission and the order of handshakes count by."""

from collections import OrderedDict
from collections.abc import Callable, Hashable


class Buckets:
    """Token buckets by key.

    Args:
        rate: tokens per second.
        burst: tokens of a full bucket.
        clock: monotonic seconds.
        most: number of keys; the least recently used one is dropped first, and starts with a full bucket again.
    """

    def __init__(self, rate: float, burst: float, clock: Callable[[], float], *, most: int = 50_000) -> None:
        self._rate, self._burst, self._clock, self._most = rate, burst, clock, most
        self._levels: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def take(self, key: Hashable) -> float:
        """Take one token; return 0, or the seconds until there is one."""
        now, level = self._clock(), self._level(key)
        if level < 1:
            return (1 - level) / self._rate
        self._levels[key] = (level - 1, now)
        self._levels.move_to_end(key)
        if len(self._levels) > self._most:
            self._levels.popitem(last=False)
        return 0.0

    def wait(self, key: Hashable) -> float:
        """Return the seconds until `take` would succeed, without taking a token."""
        return max(0.0, (1 - self._level(key)) / self._rate)

    def _level(self, key: Hashable) -> float:
        level, at = self._levels.get(key, (self._burst, 0.0))
        return min(self._burst, level + (self._clock() - at) * self._rate)


class Slot:
    """One accepted connection.

    Args:
        address: of the peer.
        close: ends the connection at once.
        is_owed: returns whether the peer has sent something that the operator has not answered.
    """

    __slots__ = ("address", "close", "gone", "is_owed", "since")

    def __init__(self, address: Hashable, close: Callable[[], None], is_owed: Callable[[], bool]) -> None:
        self.address, self.close, self.is_owed = address, close, is_owed
        self.since = 0.0
        self.gone = False
