"""Accepts connections, and starts TLS on those whose peer has sent something.

A connection costs little until its first byte: a socket, an entry, a timer. A TLS handshake costs 50 KiB and 0.7 ms of
a core, so that silent connections never get one. Accepting never waits for a single connection: it would stop behind a
flood, the system's queue would fill, and new agents would wait for TCP's retransmissions of 1, 3 and 7 s.
"""

import asyncio
import contextlib
import errno
import functools
import logging
import socket
from collections.abc import Callable

from torchyard.agents.http.admission import Admission, Slot
from torchyard.agents.registry import Counters

HANDSHAKE_SECONDS = 3.0
SHORTAGE_SECONDS = 0.5  # between two attempts to accept while the system lacks descriptors or memory
BACKLOG = 4096
"""Agents of many jobs come back at once after a restart."""
ACCEPTED_PER_TURN, HANDSHAKES_PER_TURN = 64, 16  # of the event loop, which has other work: 10 to 20 ms
SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_log = logging.getLogger(__name__)


class Acceptor:
    """Accepts the connections of a listening socket, from its creation on.

    Args:
        listener: bound.
        admission: decides which connections stay.
        counters: of connections that did not.
        begin: takes an admitted connection, and the seconds that are left for its handshake.
        awaits_byte: whether an admitted connection waits for its first byte before `begin`.
    """

    def __init__(
        self,
        listener: socket.socket,
        admission: Admission,
        counters: Counters,
        begin: Callable[[socket.socket, Slot, float], None],
        *,
        awaits_byte: bool,
    ) -> None:
        self._listener, self._admission, self._counters, self._begin = listener, admission, counters, begin
        self._awaits_byte = awaits_byte
        self._loop = asyncio.get_running_loop()
        self._early: dict[Slot, tuple[socket.socket, asyncio.TimerHandle]] = {}
        self._held: tuple[socket.socket, str] | None = None  # accepted, and without a place yet
        self._pause: asyncio.TimerHandle | None = None
        self._turn: asyncio.Handle | None = None  # in which the next handshakes start
        self._is_short = False
        listener.listen(BACKLOG)
        listener.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Stop accepting, and close connections that have not begun."""
        for handle in (self._pause, self._turn):
            if handle is not None:
                handle.cancel()
        self._loop.remove_reader(self._listener)
        if self._held is not None:
            self._held[0].close()
        for slot in tuple(self._early):
            self._admission.leave(slot)
            self._drop(slot)

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._drain)

    def _stop_for(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener)
        self._pause = self._loop.call_later(seconds, self._resume)

    def _drain(self) -> None:
        """Accept what has arrived; connections that are not admitted are closed at once."""
        for _ in range(ACCEPTED_PER_TURN):
            if self._held is None and not self._accept():
                return
            assert self._held is not None
            accepted, peer = self._held
            if seconds := self._admission.wait(peer):
                self._stop_for(seconds)
                return
            self._held = None
            self._admit(accepted, peer)

    def _accept(self) -> bool:
        """Accept one connection; return whether there was one."""
        try:
            accepted, address = self._listener.accept()
        except OSError as error:
            if error.errno in SHORTAGES:
                if not self._is_short:
                    _log.warning("connections cannot be accepted: %s", error)
                self._is_short = True
                self._stop_for(SHORTAGE_SECONDS)
            return False  # also if the peer has gone: the loop calls again while there are more
        self._is_short = False
        accepted.setblocking(False)
        self._held = accepted, str(address[0]) if isinstance(address, tuple) else ""
        return True

    def _admit(self, accepted: socket.socket, peer: str) -> None:
        slot = self._admission.enter(peer, functools.partial(_cut, accepted), functools.partial(_has_sent, accepted))
        if slot is None:
            self._counters.turned_away += 1
            accepted.close()
        elif not self._awaits_byte:
            self._begin(accepted, slot, HANDSHAKE_SECONDS)
        else:
            slot.close = functools.partial(self._drop, slot)
            end = self._loop.call_later(HANDSHAKE_SECONDS, self._give_up, slot)
            self._early[slot] = accepted, end
            self._loop.add_reader(accepted, self._spoke, slot)

    def _spoke(self, slot: Slot) -> None:
        """Queue a connection whose peer has sent something for its handshake."""
        accepted, _ = self._early[slot]
        if not _has_sent(accepted):  # the peer has gone
            self._give_up(slot)
            return
        self._loop.remove_reader(accepted)
        self._admission.handshakes.add(slot)
        if self._turn is None:
            self._turn = self._loop.call_soon(self._start_handshakes)

    def _start_handshakes(self) -> None:
        """Start those handshakes whose turn it is."""
        self._turn = None
        handshakes = self._admission.handshakes
        for _ in range(HANDSHAKES_PER_TURN):
            slot = handshakes.next()
            if slot is None:
                break
            accepted, end = self._early[slot]
            self._forget(slot)
            slot.close = functools.partial(_cut, accepted)
            self._begin(accepted, slot, max(end.when() - self._loop.time(), 0.001))
        if (seconds := handshakes.wait()) is not None:
            self._turn = self._loop.call_later(seconds, self._start_handshakes)

    def _give_up(self, slot: Slot) -> None:
        self._counters.failed_handshakes += 1
        self._admission.leave(slot)
        self._drop(slot)

    def _drop(self, slot: Slot) -> None:
        accepted = self._early[slot][0]
        self._forget(slot)
        accepted.close()

    def _forget(self, slot: Slot) -> None:
        accepted, end = self._early.pop(slot)
        end.cancel()
        self._loop.remove_reader(accepted)


def _has_sent(accepted: socket.socket) -> bool:
    """Return whether received bytes of a connection have not been read yet."""
    try:
        return bool(accepted.recv(1, socket.MSG_PEEK))
    except OSError:  # nothing yet, or closed
        return False


def _cut(accepted: socket.socket) -> None:
    """Close a connection during its handshake."""
    with contextlib.suppress(OSError):
        accepted.shutdown(socket.SHUT_RDWR)
