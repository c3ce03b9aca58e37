"""A TCP port kept free for the next round's store."""

from __future__ import annotations

import socket
from typing import Optional


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
    try:
        both = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    except OSError:
        return _bound_v4()
    try:
        both.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        both.bind(("::", 0))
    except OSError:
        both.close()
        return _bound_v4()
    return both


def _bound_v4() -> socket.socket:
    only = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    only.bind(("0.0.0.0", 0))  # noqa: S104 - holds the port on every address, and never listens
    return only
