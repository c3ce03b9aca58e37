"""Admission of connections: counted when they are accepted, before the TLS handshake.

A connection is *unproven* until it has carried a valid token; peers without a token must not keep others out.
Therefore few unproven connections are allowed at a time; beyond the limit, the oldest one of the address with the most
is closed. If every address has one, as after a restart of the operator or in a flood from many addresses, the one that
has left the operator waiting for longest is closed: an agent answers within a round trip. A proven connection is never
closed for a new one. All decisions take constant time, since a flood asks for thousands of them per second.

Admitted connections get a TLS handshake, the only costly step before an agent shows its token, in the order of what
their addresses owe. An address owes a token for each handshake. One that owes nothing comes first, one that owes many
comes last and at a limited rate: in a flood, an agent that connects for the first time overtakes all that have had
handshakes for nothing.
"""

import contextlib
import ipaddress
import resource
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from enum import IntEnum

from msgspec import Struct

RESERVED_DESCRIPTORS = 512
"""For everything else that the process opens: the API server, files, probes."""
LEAST_CONNECTIONS = 64
PATIENCE_SECONDS = 0.5
"""How long a peer without a token may leave the operator waiting while others want its place."""
RETRY_SECONDS = 0.01  # between two attempts to find a place while all are taken
LOOKS = 16  # connections that are examined for one place
FORGIVEN_PER_SECOND = 0.1
SUSPECT_DEBT = 32.0
"""More than the agents of one node, behind one address, have under way at a time, most of the time."""
SUSPECT_HANDSHAKES_PER_SECOND = 200.0  # of all suspects together; one takes 0.7 ms of a core
MOST_ADDRESSES = 50_000


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


class Slot:
    """One accepted connection.

    Args:
        address: of the peer.
        close: ends the connection at once.
        is_owed: returns whether the peer has sent something that the operator has not answered.
    """

    __slots__ = ("address", "close", "gone", "is_owed", "proven", "since")

    def __init__(self, address: Hashable, close: Callable[[], None], is_owed: Callable[[], bool]) -> None:
        self.address, self.close, self.is_owed = address, close, is_owed
        self.since = 0.0
        self.gone = self.proven = False


class Admission:
    """Counts connections, in total and by address.

    Args:
        limits: of connections; lower if the process may not open as many files.
        clock: monotonic seconds.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = min(limits.connections, max(LEAST_CONNECTIONS, _descriptors() - RESERVED_DESCRIPTORS))
        self._limits, self._clock = limits, clock
        self._taken: dict[Hashable, int] = {}
        self._unproven = _Unproven()
        self._count = 0
        self.handshakes = Handshakes(clock)

    @property
    def unproven(self) -> int:
        """Return the number of connections without a valid token."""
        return len(self._unproven)

    def wait(self, address: Hashable) -> float:
        """Return the seconds after which to ask again for a place for this address; 0: call `enter` now."""
        if not self._is_crowded(address) or self.handshakes.priority(address) is not Priority.CLEAN:
            return 0.0
        return RETRY_SECONDS if self._weakest(address) is None else 0.0

    def enter(self, address: Hashable, close: Callable[[], None], is_owed: Callable[[], bool]) -> Slot | None:
        """Admit a new connection, if necessary in place of an unproven one; None: a limit is reached."""
        if not self._has_room(address):
            return None
        slot = Slot(address, close, is_owed)
        slot.since = self._clock()
        self._count += 1
        self._taken[address] = self._taken.get(address, 0) + 1
        self._unproven.add(slot)
        return slot

    def progress(self, slot: Slot) -> None:
        """Record that the peer has done its next step."""
        slot.since = self._clock()
        self._unproven.renew(slot)

    def prove(self, slot: Slot) -> None:
        """Record that this connection has carried a valid token."""
        slot.proven = True
        if self._unproven.remove(slot):
            self.handshakes.pay(slot)

    def leave(self, slot: Slot) -> None:
        """Remove a connection from the counts; idempotent."""
        self._unproven.remove(slot)
        self.handshakes.remove(slot)
        if slot.gone:
            return
        slot.gone = True
        self._count -= 1
        self._taken[slot.address] -= 1
        if not self._taken[slot.address]:
            del self._taken[slot.address]

    def _has_room(self, address: Hashable) -> bool:
        """Return whether one more connection of an address is admitted; close an unproven one if that is fair."""
        own = self._unproven.oldest_of(address)
        if self._taken.get(address, 0) >= self._limits.connections_per_address and not self._evict(own):
            return False
        greediest = self._unproven.greediest()
        if self._count >= self.most and not self._evict(self._unproven.oldest_of(greediest)):
            return False
        if len(self._unproven) < self._limits.unproven:
            return True
        if self._is_crowded(address):
            return self._evict(self._weakest(address))
        has_less = self._unproven.count_of(address) < self._unproven.count_of(greediest)
        return has_less and self._evict(self._unproven.oldest_of(greediest))

    def _is_crowded(self, address: Hashable) -> bool:
        """Return whether too many connections are unproven and no address has more than its share."""
        if len(self._unproven) < self._limits.unproven or self._unproven.count_of(address):
            return False
        return self._unproven.count_of(self._unproven.greediest()) == 1

    def _weakest(self, address: Hashable) -> Slot | None:
        """Return the connection that makes room for one of a new address when every address has one."""
        return self._stalled() or self.handshakes.last(above=self.handshakes.priority(address))

    def _stalled(self) -> Slot | None:
        """Return the unproven connection that has left the operator waiting for longest, if too long."""
        for _ in range(LOOKS):
            slot = self._unproven.stalest()
            if slot is None or self._clock() - slot.since < PATIENCE_SECONDS:
                return None
            if not slot.is_owed():
                return slot
            self.progress(slot)  # the operator is late, not the peer
        return None

    def _evict(self, slot: Slot | None) -> bool:
        """Close an unproven connection; return whether there was one."""
        if slot is None:
            return False
        self.leave(slot)
        slot.close()
        return True


class Priority(IntEnum):
    """The priority of an address: the lowest value first."""

    CLEAN = 0
    IN_DEBT = 1
    SUSPECT = 2


class Handshakes:
    """Connections that wait for their handshake, and the debts of addresses.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._debts: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()
        self._waiting: dict[Priority, OrderedDict[Slot, None]] = {each: OrderedDict() for each in Priority}
        self._pace = Buckets(SUSPECT_HANDSHAKES_PER_SECOND, SUSPECT_HANDSHAKES_PER_SECOND / 10, clock)

    def priority(self, address: Hashable) -> Priority:
        """Return the priority of the handshakes of an address."""
        debt = self._debt(_network(address))
        return Priority.CLEAN if debt < 0.5 else Priority.IN_DEBT if debt < SUSPECT_DEBT else Priority.SUSPECT

    def add(self, slot: Slot) -> None:
        """Queue a connection for its handshake."""
        self._waiting[self.priority(slot.address)][slot] = None

    def remove(self, slot: Slot) -> None:
        """Take a connection out of the queue, if it is there."""
        for slots in self._waiting.values():
            slots.pop(slot, None)

    def next(self) -> Slot | None:
        """Return the connection whose handshake starts now; its address owes a token from now on."""
        for priority, slots in self._waiting.items():
            while slots and not (priority is Priority.SUSPECT and self._pace.wait(None)):
                slot, _ = slots.popitem(last=False)
                if (now := self.priority(slot.address)) > priority:  # others of its address had their turn before it
                    self._waiting[now][slot] = None
                    continue
                if priority is Priority.SUSPECT:
                    self._pace.take(None)
                self._owe(_network(slot.address), 1.0)
                return slot
        return None

    def wait(self) -> float | None:
        """Return the seconds until `next` may return a connection; None: none waits."""
        if self._waiting[Priority.CLEAN] or self._waiting[Priority.IN_DEBT]:
            return 0.0
        return self._pace.wait(None) if self._waiting[Priority.SUSPECT] else None

    def last(self, *, above: Priority) -> Slot | None:
        """Return the connection that would come last among those of a value above `above`."""
        for priority in reversed(Priority):
            if priority > above and self._waiting[priority]:
                return next(reversed(self._waiting[priority]))
        return None

    def pay(self, slot: Slot) -> None:
        """Record the valid token that followed a handshake."""
        self._owe(_network(slot.address), -1.0)

    def _debt(self, network: Hashable) -> float:
        debt, at = self._debts.get(network, (0.0, 0.0))
        return max(0.0, debt - (self._clock() - at) * FORGIVEN_PER_SECOND)

    def _owe(self, network: Hashable, more: float) -> None:
        self._debts[network] = (max(0.0, self._debt(network) + more), self._clock())
        self._debts.move_to_end(network)
        if len(self._debts) > MOST_ADDRESSES:
            self._debts.popitem(last=False)


def _network(address: Hashable) -> Hashable:
    """Return the address; of IPv6 its /64, within which a host chooses addresses as it likes."""
    if isinstance(address, str) and ":" in address and not address.startswith("::ffff:"):
        return int(ipaddress.IPv6Address(address.partition("%")[0])) >> 64
    return address


class _Unproven:
    """Connections without a valid token, by address and by the time of their last step."""

    def __init__(self) -> None:
        self._by_address: dict[Hashable, OrderedDict[Slot, None]] = {}  # oldest first
        self._by_count: dict[int, dict[Hashable, None]] = {}
        self._most = 0
        self._by_step: OrderedDict[Slot, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_step)

    def add(self, slot: Slot) -> None:
        slots = self._by_address.setdefault(slot.address, OrderedDict())
        slots[slot] = self._by_step[slot] = None
        self._recount(slot.address, len(slots) - 1, len(slots))
        self._most = max(self._most, len(slots))

    def remove(self, slot: Slot) -> bool:
        if slot not in self._by_step:
            return False
        slots = self._by_address[slot.address]
        del slots[slot], self._by_step[slot]
        self._recount(slot.address, len(slots) + 1, len(slots))
        if self._most not in self._by_count:
            self._most -= 1
        if not slots:
            del self._by_address[slot.address]
        return True

    def renew(self, slot: Slot) -> None:
        if slot in self._by_step:
            self._by_step.move_to_end(slot)

    def count_of(self, address: Hashable) -> int:
        return len(self._by_address.get(address, ()))

    def oldest_of(self, address: Hashable) -> Slot | None:
        return next(iter(self._by_address.get(address, ())), None)

    def stalest(self) -> Slot | None:
        return next(iter(self._by_step), None)

    def greediest(self) -> Hashable:
        return next(iter(self._by_count.get(self._most, ())), None)

    def _recount(self, address: Hashable, before: int, after: int) -> None:
        if before:
            del self._by_count[before][address]
            if not self._by_count[before]:
                del self._by_count[before]
        if after:
            self._by_count.setdefault(after, {})[address] = None


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


def raise_descriptor_limit() -> None:
    """Raise the limit of open files of this process to its hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
