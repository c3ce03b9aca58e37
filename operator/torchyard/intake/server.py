"""The listening side of the intake: HTTP for agents, over TLS on a cluster."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from torchyard.intake.book import Book, Counters
from torchyard.intake.connection import Connection, Handle
from torchyard.intake.limits import Limits, Room
from torchyard.intake.sync import ELSEWHERE, Authenticate, Sync
from torchyard.intake.wire import MAX_BODY_BYTES

SWEEP_SECONDS = 2.0
END_SECONDS = 2.0
HANDSHAKE_SECONDS = 10.0
BUFFER_BYTES = 64 * 1024
BACKLOG = 4096
"""Agents of many jobs come back at once after a restart."""


@dataclass(frozen=True)
class Application:
    """What answers requests, where it counts them, and how many connections it takes."""

    handle: Handle
    counters: Counters
    limits: Limits


def application(
    book: Book,
    authenticate: Authenticate,
    *,
    serving: Callable[[], bool] = lambda: True,
    limits: Limits | None = None,
) -> Application:
    """The answers of one book.

    Args:
        book: takes in what agents say, and knows what they are told.
        authenticate: whose token it is; it decides alone who may speak for a pod.
        serving: whether this process leads and knows its pods; else agents are sent elsewhere.
        limits: None: the default ones.
    """
    limits = limits or Limits()
    return Application(Sync(book, authenticate, serving, limits).handle, book.counters, limits)


class Intake:
    """A listening intake, to be used as `async with Intake(app, ...) as intake: intake.port`.

    Args:
        app: what `application` made.
        host: address to listen on.
        port: 0: any free one.
        tls: server context; None only for loopback addresses.
        listener: a socket that is bound already, instead of host and port.

    Raises:
        OSError: on entering, when the port is taken.
    """

    def __init__(
        self,
        app: Application,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        listener: socket.socket | None = None,
    ) -> None:
        self._app, self._host, self._tls, self._listener = app, host, tls, listener
        self._room = Room(app.limits)
        self.buffer = memoryview(bytearray(BUFFER_BYTES))
        self._connections: set[Connection] = set()
        self._empty = asyncio.Event()
        self.port = port

    @property
    def connections(self) -> int:
        """How many there are just now."""
        return len(self._connections)

    @property
    def url(self) -> str:
        """Base URL for agents."""
        return f"{'https' if self._tls else 'http'}://{self._host}:{self.port}"

    async def __aenter__(self) -> Self:
        """Start listening."""
        loop = asyncio.get_running_loop()
        if self._listener is not None:
            self._server = await loop.create_server(self._connection, sock=self._listener, backlog=BACKLOG)
        else:
            self._server = await loop.create_server(
                self._connection,
                self._host,
                self.port,
                ssl=self._tls,
                ssl_handshake_timeout=HANDSHAKE_SECONDS if self._tls else None,
                ssl_shutdown_timeout=END_SECONDS if self._tls else None,
                backlog=BACKLOG,
                reuse_address=True,
            )
            self.port = self._server.sockets[0].getsockname()[1]
        self._sweeper = asyncio.create_task(self._sweep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """As `close`."""
        await self.close()

    async def close(self) -> None:
        """Stop listening, send everybody elsewhere, and wait a moment for those who do not go."""
        self._sweeper.cancel()
        self._server.close()
        self.dismiss()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                while self._connections:
                    self._empty.clear()
                    await self._empty.wait()
        for connection in tuple(self._connections):
            connection.abort()

    def dismiss(self) -> None:
        """End every connection, held polls with 503: this process leads no more, and their next one finds who does."""
        for connection in tuple(self._connections):
            connection.end(ELSEWHERE)

    def _connection(self) -> Connection:
        return Connection(self._app.handle, self, max_body=MAX_BODY_BYTES)

    def opened(self, connection: Connection) -> None:
        """Count it in, if there is room."""
        self._connections.add(connection)
        if not self._room.enter(connection.peer):
            self._app.counters.turned_away += 1
            connection.abort()

    def refused(self, status: int) -> None:
        """Count a request that was refused before it was complete."""
        if status == 413:
            self._app.counters.too_large += 1
        else:
            self._app.counters.malformed += 1

    def closed(self, connection: Connection) -> None:
        """Count it out."""
        self._connections.discard(connection)
        self._room.leave(connection.peer)
        self._empty.set()

    async def _sweep(self) -> None:
        """Cut off who sends or reads too slowly or is idle for long; one look at all is cheaper than a timer each."""
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = clock()
            for connection in tuple(self._connections):
                if connection.deadline < now:
                    connection.abort()
