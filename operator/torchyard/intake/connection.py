"""HTTP/1.1 as far as agents need it, on one connection: small requests one at a time, answers of one piece.

Most connections hold a poll most of the time, so what one costs is what the intake costs: this takes about half of what
a general web server does (docs/notebook.md). The grammar is llhttp's; what it refuses is not looked at again.
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

from torchyard.intake.admission import Slot

MAX_PATH_BYTES = 1024
MAX_HEAD_BYTES = 24 * 1024
MAX_PIPELINED = 4
REQUEST_SECONDS = 10.0
"""From the first byte of a request to its last, and for reading an answer."""
IDLE_SECONDS = 90.0
LINGER_SECONDS = 1.0

_log = logging.getLogger(__name__)


class Request(Struct, frozen=True):
    """One request, complete."""

    method: str
    path: str
    authorization: str
    body: bytes
    peer: str
    """Address of the other side."""
    proven: Callable[[], None]
    """To be called once its token is known to be good: the connection is then never closed to make room."""


class Response(Struct, frozen=True):
    """One answer."""

    status: int
    document: Any
    """Sent as JSON."""
    retry_after: int | None = None
    """Seconds."""
    close: bool = False
    """Whether the connection ends with it: the next one may find somebody who can help."""


Handle = Callable[[Request], Awaitable[Response]]


class House(Protocol):
    """Who keeps the connections.

    Attributes:
        buffer: what any of them receives into. One for all, since what was received is read before anything else is;
            a transport that brings its own takes and returns 256 KiB for each read over TLS.
    """

    buffer: memoryview

    def opened(self, connection: "Connection") -> None:
        """There is one more."""
        ...

    def refused(self, status: int) -> None:
        """A request was refused before it was complete."""
        ...

    def proven(self, connection: "Connection") -> None:
        """A valid token came over it."""
        ...

    def closed(self, connection: "Connection") -> None:
        """It is gone."""
        ...


class Connection(asyncio.BufferedProtocol):
    """One connection.

    Args:
        handle: answers a request; cancelled when the other side is gone.
        house: is told of this connection.
        slot: where it is counted.
        max_body: bytes.

    Attributes:
        peer: address of the other side.
        deadline: when it has had enough time for what it does now, seconds of the loop's clock.
    """

    __slots__ = (
        "_authorization",
        "_body",
        "_ending",
        "_handle",
        "_house",
        "_loop",
        "_max_body",
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

    def __init__(self, handle: Handle, house: House, slot: Slot, *, max_body: int) -> None:
        self.slot = slot
        self._handle, self._house, self._max_body = handle, house, max_body
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

    def end(self, response: Response | None = None) -> None:
        """Close; `response` is for a request that is being worked on."""
        if self._task is not None and response is not None:
            self._task.cancel()
            self._task = None
            self._write(response, keep=False)
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close without another word."""
        if self._transport is not None:
            self._transport.abort()

    # What the transport says.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """There is a way to answer now."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports only look like one
        self.peer = str((transport.get_extra_info("peername") or ("",))[0])
        self._house.opened(self)

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Where to put what comes."""
        return self._house.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Read what came, and answer what is complete."""
        if self._ending:
            return
        self._size += nbytes
        try:
            self._parser.feed_data(self._house.buffer[:nbytes])
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
        """A poll whose agent died ends, so that it does not count as connected."""
        self._transport = None
        self._ready.clear()
        if self._task is not None:
            self._task.cancel()
        del self._parser  # it holds us
        self._house.closed(self)

    def pause_writing(self) -> None:
        """The other side does not read: nothing more is answered until it does."""
        self._paused = True

    def resume_writing(self) -> None:
        """It reads again."""
        self._paused = False
        self._next()

    # What the parser says.

    def on_url(self, url: bytes) -> None:
        """A piece of the path."""
        self._url += url
        if len(self._url) > MAX_PATH_BYTES:
            self._refuse(414, f"The path is longer than {MAX_PATH_BYTES} bytes.")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        if len(name) == 13 and name.lower() == b"authorization":
            self._authorization = value
        elif len(name) == 14 and name.lower() == b"content-length" and int(value) > self._max_body:
            self._too_large()

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._room += len(body)
        if self._room > self._max_body:
            self._too_large()
        elif self._refusal is None:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._reading = False
        request = Request(
            self._parser.get_method().decode("latin-1"),
            self._url.decode("latin-1"),
            self._authorization.decode("latin-1"),
            b"".join(self._body),
            self.peer,
            functools.partial(self._house.proven, self),
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
        del request  # the handler lets go of it, too, before it waits
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
        """Say it, and hear out what is still coming: a close at once would reset the connection and lose the answer."""
        self._ending = True
        self._house.refused(refusal.status)
        if self._task is not None:
            self._task.cancel()
        self.deadline = self._loop.time() + LINGER_SECONDS
        if self._transport is not None:
            self._transport.write(_encoded(refusal, keep=False))
            self._loop.call_later(LINGER_SECONDS, self._transport.close)


def _encoded(response: Response, *, keep: bool) -> bytes:
    body = msgspec.json.encode(response.document)
    extra = "" if keep else "Connection: close\r\n"
    if response.retry_after is not None:
        extra += f"Retry-After: {response.retry_after}\r\n"
    head = (
        f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
    )
    return head.encode() + body
