"""Rate limits per pod, per address and in total."""

from collections import OrderedDict
from collections.abc import Callable, Hashable

from msgspec import Struct


class Limits(Struct, frozen=True, kw_only=True):
    """Limits that a correct agent never reaches."""

    connections: int = 20_000
    connections_per_address: int = 2_000
    """Pods behind one address (host network, address translation) share these."""
    unproven: int = 1024
    """Connections over which no valid token has come yet, those in a TLS handshake among them."""
    syncs_per_second: float = 5.0
    """Of one pod, lasting; every poll that is held for a while and every piece of news is one sync."""
    syncs_burst: float = 40.0
    refusals_per_second: float = 20.0
    """Refused tokens of one address, lasting; tokens that were never good are not looked at while it sends more."""
    refusals_burst: float = 200.0


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
