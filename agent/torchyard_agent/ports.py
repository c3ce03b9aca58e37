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
    """Holds a port bound, without listening, until the round that needs it starts.

    torch's store listens on all interfaces: on a machine with several agents a port has to be free on every address.
    """

    def __init__(self) -> None:
        self._socket: Optional[socket.socket] = None

    def number(self) -> int:
        """The port held now; another one after each release."""
        if self._socket is None:
            self._socket = _bound()
        return int(self._socket.getsockname()[1])

    def release(self) -> None:
        """Give the port up, for the store to take."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _bound() -> socket.socket:
    # Between the release and the store's listening any port of the range of outgoing connections may be given to one;
    # nobody gets these who does not ask for them.
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
