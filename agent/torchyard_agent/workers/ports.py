"""A TCP port kept free for the next round's store."""

from __future__ import annotations

import contextlib
import random
import socket
from typing import Optional

# Well-known services are below; above are node ports of Kubernetes and the ports of outgoing connections.
LEAST, MOST = 15_000, 29_999
TRIES = 20


class ReservedPort:
    """Holds a port bound, without listening, until the round that needs it starts, and then beside its store.

    torch's store listens on all interfaces: on a machine with several agents a port has to be free on every address.
    """

    def __init__(self) -> None:
        self._socket: Optional[socket.socket] = None
        self._lent: Optional[socket.socket] = None

    def number(self) -> int:
        """Return the port held now; another one after each `lend`."""
        if self._socket is None:
            self._socket = _bound()
        return int(self._socket.getsockname()[1])

    def lend(self) -> None:
        """Lend the port to the store of a round, and keep it from every other agent until the next one is lent."""
        held, self._socket = self._socket, None
        if held is None:
            return
        if self._lent is not None:
            self._lent.close()
        self._lent = held
        if not _shared(held):
            held.close()


def _shared(held: socket.socket) -> bool:
    """Admit sockets that ask for a used address, as stores do and `_bound` does not; False: this kernel does not."""
    number = int(held.getsockname()[1])
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        with socket.create_server(("", number)):
            return True
    except OSError:
        return False


def _bound() -> socket.socket:
    # Where a port cannot be shared, one of the range of outgoing connections may be given to one before the store
    # listens; a process gets these only by asking for them.
    for _ in range(TRIES):
        with contextlib.suppress(OSError):
            return _bound_to(random.randint(LEAST, MOST))  # noqa: S311 - no secret
    return _bound_to(0)


def _bound_to(number: int) -> socket.socket:
    try:
        both = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    except OSError:
        return _bound_v4(number)
    try:
        both.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        both.bind(("::", number))
    except OSError:
        both.close()
        return _bound_v4(number)
    return both


def _bound_v4(number: int) -> socket.socket:
    only = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        only.bind(("0.0.0.0", number))  # noqa: S104 - holds the port on every address, and never listens
    except OSError:
        only.close()
        raise
    return only
