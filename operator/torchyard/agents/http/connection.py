"""HTTP/1.1 on one connection, as far as agents need it: one small request at a time, complete answers.

Most connections hold a long poll most of the time, so their memory dominates: this uses 0.78 of what aiohttp's server
does, and 0.60 of its processor time (docs/decisions/0034-our-own-http-server-for-agents.md). The parser is llhttp; a
request that it rejects is not parsed further.
"""

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Protocol, cast

import httptools
import msgspec
from msgspec import Struct

from torchyard.agents.http.admission import Slot

MAX_PATH_BYTES = 1024
MAX_HEAD_BYTES = 24 * 1024
MAX_PIPELINED = 4
REQUEST_SECONDS = 10.0
"""From the first byte of a request to its last, and for reading an answer."""
IDLE_SECONDS = 90.0
LINGER_SECONDS = 1.0

_log = logging.getLogger(__name__)


class Request(Struct, frozen=True):
    """One complete request."""

    method: str
    path: str
    authorization: str
    body: bytes
    peer: str
    """Address of the other side."""
    proven: Callable[[], None]
    """Call it once the token is valid: the connection is then never closed for another one."""


class Response(Struct, frozen=True):
    """One response."""

    status: int
    document: Any
    """Sent as JSON, or bytes of type `content`."""
    retry_after: int | None = None
    """Seconds."""
    close: bool = False
    """Whether the connection is closed after it: the next one may reach the leader."""
    content: str = "application/json"


Handle = Callable[[Request], Awaitable[Response]]


class ConnectionOwner(Protocol):
    """The owner of connections, which is notified of their events.

    Attributes:
        buffer: the receive buffer. All connections share it, since received bytes are parsed at once; a transport
            with its own buffer allocates and frees 256 KiB for each read over TLS.
    """

    buffer: memoryview

    def opened(self, connection: "Connection") -> None:
        """Count a new connection."""
        ...

    def refused(self, status: int) -> None:
        """Count a request that was rejected before it was complete."""
        ...

    def proven(self, connection: "Connection") -> None:
        """Record a valid token."""
        ...

    def closed(self, connection: "Connection") -> None:
        """Forget a closed connection."""
        ...


class Connection(asyncio.BufferedProtocol):
    """One connection.

    Args:
        handle: answers a request; cancelled when the peer disconnects.
        owner: owns this connection.
        slot: counts it.
        max_body: bytes.

    Attributes:
        peer: address of the peer.
        deadline: when the current activity times out, in seconds of the loop's clock.
    """

    __slots__ = (
        "_authorization",
        "_body",
        "_ending",
        "_handle",
        "_loop",
        "_max_body",
        "_owner",
        "_parser",
        "_paused",
        "_reading",
        "_ready",
        "_refusal",
        "_room",
        "_size",
        "_task",
        "_transport",
        "_url",
        "deadline",
        "peer",
        "slot",
    )

    def __init__(self, handle: Handle, owner: ConnectionOwner, slot: Slot, *, max_body: int) -> None:
        self.slot = slot
        self._handle, self._owner, self._max_body = handle, owner, max_body
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._ready: deque[tuple[Request, bool]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._refusal: Response | None = None
        self._paused = self._ending = self._reading = False
        self._forget()
        self.deadline = self._loop.time() + REQUEST_SECONDS
        self.peer = ""

    @property
    def is_answering(self) -> bool:
        """Return whether a complete request is being answered."""
        return self._task is not None

    def end(self, response: Response | None = None) -> None:
        """Close the connection; `response` answers a request in progress."""
        if self._task is not None and response is not None:
            self._task.cancel()
            self._task = None
            self._write(response, keep=False)
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection without a response."""
        if self._transport is not None:
            self._transport.abort()

    # Callbacks of the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports only look like asyncio's
        self.peer = str((transport.get_extra_info("peername") or ("",))[0])
        self._owner.opened(self)

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Return the receive buffer."""
        return self._owner.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Parse received bytes, and answer complete requests."""
        if self._ending:
            return
        self._size += nbytes
        try:
            self._parser.feed_data(self._owner.buffer[:nbytes])
        except httptools.HttpParserUpgrade:
            self._refuse(400, "No other protocol is spoken here.")
        except httptools.HttpParserError as error:
            self._refuse(400, f"This is not an HTTP/1.1 request: {error}.")
        if self._size > MAX_HEAD_BYTES + self._max_body:
            self._refuse(431, f"The request is larger than {MAX_HEAD_BYTES + self._max_body} bytes.")
        if len(self._ready) > MAX_PIPELINED:
            self._refuse(429, f"More than {MAX_PIPELINED} requests wait on this connection.")
        if self._refusal is not None:
            self._end_with(self._refusal)
        elif self._task is None and self._ready:
            self._next()
        elif self._task is None and not self._reading:
            self._reading = True
            self.deadline = self._loop.time() + REQUEST_SECONDS

    def connection_lost(self, _error: Exception | None) -> None:
        """Cancel a long poll, so that an agent that died does not count as connected."""
        self._transport = None
        self._ready.clear()
        if self._task is not None:
            self._task.cancel()
        del self._parser  # it references this connection
        self._owner.closed(self)

    def pause_writing(self) -> None:
        """Stop answering until the peer reads."""
        self._paused = True

    def resume_writing(self) -> None:
        """Continue answering."""
        self._paused = False
        self._next()

    # Callbacks of the parser.

    def on_url(self, url: bytes) -> None:
        """Append to the path."""
        self._url += url
        if len(self._url) > MAX_PATH_BYTES:
            self._refuse(414, f"The path is longer than {MAX_PATH_BYTES} bytes.")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header."""
        if len(name) == 13 and name.lower() == b"authorization":
            self._authorization = value
        elif len(name) == 14 and name.lower() == b"content-length" and int(value) > self._max_body:
            self._too_large()

    def on_body(self, body: bytes) -> None:
        """Append to the body."""
        self._room += len(body)
        if self._room > self._max_body:
            self._too_large()
        elif self._refusal is None:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """Queue the complete request."""
        self._reading = False
        request = Request(
            self._parser.get_method().decode("latin-1"),
            self._url.decode("latin-1"),
            self._authorization.decode("latin-1"),
            b"".join(self._body),
            self.peer,
            functools.partial(self._owner.proven, self),
        )
        self._ready.append((request, self._parser.should_keep_alive()))
        self._forget()

    def _forget(self) -> None:
        self._size = self._room = 0
        self._url = self._authorization = b""
        self._body: list[bytes] = []

    # Answers.

    def _next(self) -> None:
        if self._task is None and self._ready and not self._paused and not self._ending:
            self.deadline = float("inf")
            self._task = self._loop.create_task(self._answer(*self._ready.popleft()))

    async def _answer(self, request: Request, keep: bool) -> None:
        answering, said = self._handle(request), f"{request.method} {request.path}"
        del request  # the handler also drops it before it waits
        try:
            response = await answering
        except Exception:  # noqa: BLE001 -- the agent gets an answer, the log the trace
            _log.exception("no answer to %s", said)
            response = Response(500, {"error": "The operator failed to answer; its log says why."})
        self._task = None
        self._write(response, keep=keep)
        self._next()

    def _write(self, response: Response, *, keep: bool) -> None:
        keep = keep and not response.close
        self.deadline = self._loop.time() + (IDLE_SECONDS if keep else REQUEST_SECONDS)
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(_encoded(response, keep=keep))
        if self._paused:
            self.deadline = self._loop.time() + REQUEST_SECONDS
        if not keep:
            self._ending = True
            self._transport.close()

    def _too_large(self) -> None:
        self._refuse(413, f"The body is larger than {self._max_body} bytes.")

    def _refuse(self, status: int, sentence: str) -> None:
        self._refusal = self._refusal or Response(status, {"error": sentence}, close=True)

    def _end_with(self, refusal: Response) -> None:
        """Send a response and drain what still arrives: closing at once would reset the connection and lose it."""
        self._ending = True
        self._owner.refused(refusal.status)
        if self._task is not None:
            self._task.cancel()
        self.deadline = self._loop.time() + LINGER_SECONDS
        if self._transport is not None:
            self._transport.write(_encoded(refusal, keep=False))
            self._loop.call_later(LINGER_SECONDS, self._transport.close)


def _encoded(response: Response, *, keep: bool) -> bytes:
    body = response.document if isinstance(response.document, bytes) else msgspec.json.encode(response.document)
    extra = "" if keep else "Connection: close\r\n"
    if response.retry_after is not None:
        extra += f"Retry-After: {response.retry_after}\r\n"
    head = (
        f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}\r\n"
        f"Content-Type: {response.content}\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
    )
    return head.encode() + body
