"""The order in which connections get a TLS handshake, the only costly step before an agent shows its token.

An address owes a token for each handshake. One that owes nothing comes first, one that owes many comes last and at a
limited rate: in a flood, an agent that connects for the first time overtakes all that have had handshakes for nothing.
"""

import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Hashable
from enum import IntEnum

from torchyard.agents.http.slots import Buckets, Slot

FORGIVEN_PER_SECOND = 0.1
SUSPECT_DEBT = 32.0
"""More than the agents of one node, behind one address, have under way at a time, most of the time."""
SUSPECT_HANDSHAKES_PER_SECOND = 200.0  # of all suspects together; one takes 0.7 ms of a core
MOST_ADDRESSES = 50_000


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
