"""The listener of /healthz, /readyz and /metrics: connections are short, and no address can take all of them.

These pages are plain HTTP for every client. A flood of connections, or requests that never end, must not
keep the kubelet's probes from an answer: a missed liveness probe restarts the operator.
"""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Hashable
from typing import cast

from aiohttp import web
from msgspec import Struct

BACKLOG = 1024
"""Connections that wait to be accepted: with the default of 100, a flood makes the system drop the kubelet's."""

_silent = logging.getLogger(f"{__name__}.access")
_silent.disabled = True


class PageLimits(Struct, frozen=True, kw_only=True):
    """Bounds of the listener."""

    connections: int = 128
    connections_per_address: int = 16
    seconds: float = 10.0
    """From the first byte to the last of a connection, which serves one request."""


class Connections:
    """Open connections by address; where there are too many, the oldest of the busiest address is closed."""

    def __init__(self, limits: PageLimits) -> None:
        self._limits = limits
        self._open: defaultdict[Hashable, dict[asyncio.Transport, None]] = defaultdict(dict)  # oldest first

    def __len__(self) -> int:
        """Return how many are open."""
        return sum(map(len, self._open.values()))

    def add(self, address: Hashable, transport: asyncio.Transport) -> None:
        """Add a connection, and close another one if a limit is exceeded."""
        self._open[address][transport] = None
        if len(self._open[address]) > self._limits.connections_per_address:
            self._close_oldest(address)
        elif len(self) > self._limits.connections:
            self._close_oldest(max(self._open, key=lambda each: len(self._open[each])))

    def remove(self, address: Hashable, transport: asyncio.Transport) -> None:
        """Forget a connection."""
        self._open[address].pop(transport, None)
        if not self._open[address]:
            del self._open[address]

    def _close_oldest(self, address: Hashable) -> None:
        oldest = next(iter(self._open[address]))
        self.remove(address, oldest)
        oldest.abort()


class _Bounded(web.RequestHandler):
    def __init__(self, server: web.Server, connections: Connections, seconds: float) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), access_log=_silent)
        self._connections, self._seconds = connections, seconds
        self._address: Hashable = None
        self._end: asyncio.TimerHandle | None = None
        self._own: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A transport of uvloop has the methods of `asyncio.Transport` and is none of its subclasses.
        self._own = cast("asyncio.Transport", transport)
        self._address = (transport.get_extra_info("peername") or ("",))[0]
        self._end = asyncio.get_running_loop().call_later(self._seconds, self._own.abort)
        super().connection_made(transport)
        self._connections.add(self._address, self._own)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._end is not None:
            self._end.cancel()
        if self._own is not None:
            self._connections.remove(self._address, self._own)
        super().connection_lost(exc)


async def _close_after(_request: web.Request, response: web.StreamResponse) -> None:
    response.force_close()
    response.headers["Connection"] = "close"


@contextlib.asynccontextmanager
async def served(
    pages: web.Application, port: int, *, host: str | None = None, limits: PageLimits | None = None
) -> AsyncIterator[int]:
    """Serve the pages for the duration of a `with` block; yields the port.

    Args:
        pages: not yet served.
        port: to listen on; 0: any.
        host: to listen on; None: all addresses.
        limits: of connections; None: the usual ones.
    """
    limits = limits or PageLimits()
    connections = Connections(limits)
    pages.on_response_prepare.append(_close_after)
    runner = web.AppRunner(pages, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    try:
        handlers = runner.server
        assert handlers is not None
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(
            lambda: _Bounded(handlers, connections, limits.seconds), host, port, reuse_address=True, backlog=BACKLOG
        )
        try:
            yield listener.sockets[0].getsockname()[1]
        finally:
            listener.close()
    finally:
        await runner.cleanup()
