"""Admission of connections: counted when they are accepted, before the TLS handshake.

A connection is *unproven* until it has carried a valid token; peers without a token must not keep others out.
Therefore few unproven connections are allowed at a time; beyond the limit, the oldest one of the address with the most
is closed. A proven connection is never closed for a new one.
"""

import asyncio
import contextlib
import resource
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable

from msgspec import Struct

RESERVED_DESCRIPTORS = 512
"""For everything else that the process opens: the API server, files, probes."""
LEAST_CONNECTIONS = 64


class Limits(Struct, frozen=True, kw_only=True):
    """Limits that a correct agent never reaches."""

    connections: int = 20_000
    connections_per_address: int = 2_000
    """Pods behind one address (host network, address translation) share these."""
    unproven: int = 1024
    """Connections over which no valid token has come yet, those in a TLS handshake among them."""
    syncs_per_second: float = 5.0
    """Syncs of one pod, a second; every long poll and every piece of news is one sync."""
    syncs_burst: float = 40.0
    refusals_per_second: float = 20.0
    """Rejected tokens of one address, a second; further unknown tokens of it are not verified while it sends more."""
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


class Slot:
    """One accepted connection.

    Args:
        address: of the peer.
        close: ends the connection at once.
    """

    __slots__ = ("address", "close", "gone")

    def __init__(self, address: Hashable, close: Callable[[], None]) -> None:
        self.address, self.close, self.gone = address, close, False


class Admission:
    """Counts connections, in total and by address.

    Args:
        limits: of connections; lower if the process may not open as many files.
    """

    def __init__(self, limits: Limits) -> None:
        self.most = min(limits.connections, max(LEAST_CONNECTIONS, _descriptors() - RESERVED_DESCRIPTORS))
        self._limits = limits
        self._taken: dict[Hashable, int] = {}
        self._unproven: dict[Hashable, OrderedDict[Slot, None]] = {}
        self._unproven_count = self._count = 0
        self._change = asyncio.Event()

    async def enter(self, address: Hashable, close: Callable[[], None], *, seconds: float) -> Slot | None:
        """Admit a new connection, if necessary in place of an unproven one; None: the limit is reached.

        If many addresses have one unproven connection each, as after a restart, wait for one of them to proceed.
        """
        while self._is_crowded(address) and seconds > 0:
            seconds -= await self._changed(seconds)
        if self._is_crowded(address) or not self._has_room(address):
            return None
        slot = Slot(address, close)
        self._count += 1
        self._taken[address] = self._taken.get(address, 0) + 1
        self._unproven.setdefault(address, OrderedDict())[slot] = None
        self._unproven_count += 1
        return slot

    def prove(self, slot: Slot) -> None:
        """Record that this connection has carried a valid token."""
        self._forget(slot)

    def leave(self, slot: Slot) -> None:
        """Remove a connection from the counts; idempotent."""
        self._forget(slot)
        if slot.gone:
            return
        slot.gone = True
        self._count -= 1
        self._taken[slot.address] -= 1
        if not self._taken[slot.address]:
            del self._taken[slot.address]

    def _has_room(self, address: Hashable) -> bool:
        """Return whether one more connection of an address is admitted; close an unproven one if that is fair."""
        if self._taken.get(address, 0) >= self._limits.connections_per_address and not self._evict(address):
            return False
        if self._count >= self.most and not self._evict(self._greediest()):
            return False
        if self._unproven_count < self._limits.unproven:
            return True
        greediest = self._greediest()
        return len(self._unproven.get(address, ())) < len(self._unproven[greediest]) and self._evict(greediest)

    def _is_crowded(self, address: Hashable) -> bool:
        """Return whether too many connections are unproven and no address has more than its share."""
        if self._unproven_count < self._limits.unproven or address in self._unproven:
            return False
        return len(self._unproven[self._greediest()]) == 1

    async def _changed(self, seconds: float) -> float:
        """Wait until a connection leaves or is proven, with a limit; return the seconds that it took."""
        clock = asyncio.get_running_loop().time
        begun = clock()
        self._change.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._change.wait()
        return clock() - begun

    def _evict(self, address: Hashable) -> bool:
        """Close the oldest unproven connection of an address; return whether there was one."""
        slot = next(iter(self._unproven.get(address, ())), None)
        if slot is None:
            return False
        self.leave(slot)
        slot.close()
        return True

    def _greediest(self) -> Hashable:
        return max(self._unproven, key=lambda address: len(self._unproven[address]), default=None)

    def _forget(self, slot: Slot) -> None:
        """Remove a connection from the unproven ones."""
        slots = self._unproven.get(slot.address)
        if slots is not None and slot in slots:
            del slots[slot]
            self._unproven_count -= 1
            if not slots:
                del self._unproven[slot.address]
        self._change.set()


def raise_descriptor_limit() -> None:
    """Raise the limit of open files of this process to its hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
