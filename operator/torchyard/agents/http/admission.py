"""Admission of connections: counted when they are accepted, before the TLS handshake.

A connection is *unproven* until it has carried a valid token; peers without a token must not keep others out.
Therefore few unproven connections are allowed at a time; beyond the limit, the oldest one of the address with the most
is closed. If every address has one, as after a restart of the operator or in a flood from many addresses, the one that
has left the operator waiting for longest is closed: an agent answers within a round trip. A proven connection is never
closed for a new one. All decisions take constant time, since a flood asks for thousands of them per second.
"""

import contextlib
import resource
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

from msgspec import Struct

from torchyard.agents.http.handshakes import Handshakes, Priority
from torchyard.agents.http.slots import Slot

RESERVED_DESCRIPTORS = 512
"""For everything else that the process opens: the API server, files, probes."""
LEAST_CONNECTIONS = 64
PATIENCE_SECONDS = 0.5
"""How long a peer without a token may leave the operator waiting while others want its place."""
RETRY_SECONDS = 0.01  # between two attempts to find a place while all are taken
LOOKS = 16  # connections that are examined for one place


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


def raise_descriptor_limit() -> None:
    """Raise the limit of open files of this process to its hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
