"""One HTTP session to the API server: requests that answer or raise one of a few errors, and the lines of a watch.

Only a request whose credentials were rejected is sent twice: back-off is the task of the callers.
"""

import asyncio
import contextlib
import re
import socket
import ssl
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import msgspec
from aiohttp import ClientHandlerType, ClientMiddlewareType, ClientRequest, ClientResponse
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import BytesPayload

from torchyard.kubernetes.client.credentials import Credentials
from torchyard.kubernetes.client.errors import Fenced, TooLarge, refusal
from torchyard.reconcile.ports import Unavailable
from torchyard.version import __version__

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"  # lists of built-in kinds are merged by key
APPLY_PATCH = "application/apply-patch+yaml"  # JSON is YAML
METADATA_OF_ALL = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"  # of a list
METADATA_OF_ONE = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
# Most writes are encoded from our own types, so the server need not check for unknown fields.
UNCHECKED = {"fieldValidation": "Ignore"}

CONNECTIONS = 128
CONNECT_SECONDS = 5.0
REQUEST_SECONDS = 15.0
SILENCE_SECONDS = 70.0
# What was handed to the kernel is delivered within this time or never: less than passes between the moment a leader
# stops writing and the moment its lease can be taken (election.py).
UNDELIVERED_SECONDS = 3.0
LEAST_RATE = 1.0
BUSY_SECONDS = 1.0
# Rounding may leave a bucket just short of a whole token, a difference that no clock can wait for.
ONE_TOKEN = 1.0 - 1e-9
RECOVERY = 0.1
MAX_ANSWER_BYTES = 256 * 2**20
MAX_LINE_BYTES = 16 * 2**20

Observe = Callable[[str, str, int], None]
"""Called with verb, path and HTTP status of every request; status 0: unanswered."""

_NAMESPACE = re.compile(r"/namespaces/([^/]+)")


def version(resource_version: str) -> int:
    """Return a resource version as a number, comparable within one resource (KEP-5504); 0 if it is not a number."""
    return int(resource_version) if resource_version.isascii() and resource_version.isdigit() else 0


# Several API servers differ a little; such differences are ignored.
SLACK_SECONDS = 5.0


def boottime() -> float:
    """Return the seconds of a clock that counts while the machine sleeps and never jumps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Fence:
    """The time until which this process may write; the election moves it, and every write checks it.

    Args:
        holder: name of this process, for the error.
        retry_after: seconds after which a rejected write may be tried again.
        clock: seconds that never jump.
    """

    def __init__(
        self, holder: str = "", *, retry_after: float | None = None, clock: Callable[[], float] = boottime
    ) -> None:
        self.until = float("-inf")
        self._holder, self._retry_after, self._clock = holder, retry_after, clock

    @property
    def left(self) -> float:
        """Seconds for which this process may still write; not positive: it may not."""
        return self.until - self._clock()

    def check(self) -> None:
        """Raise an error unless this process may write now.

        Raises:
            Fenced: another process may hold the lease.
        """
        if self.left <= 0:
            raise Fenced(f"{self._holder} does not hold the lease", self._retry_after)


class ServerTime:
    """Unix seconds of the API server; until it answered once, those of this machine.

    Args:
        steady: seconds that never jump.
        wall: unix seconds of this machine, read once.
    """

    def __init__(self, steady: Callable[[], float] = boottime, wall: Callable[[], float] = time.time) -> None:
        self.steady = steady
        self._ahead = wall() - steady()
        self._heard: str | None = None

    def __call__(self) -> float:
        """Now."""
        return self.steady() + self._ahead

    def note(self, date: str | None, *, sent: float) -> None:
        """Correct the clock by the `Date` of an answer, which has whole seconds.

        Args:
            date: the header, None: there was none.
            sent: when the request was sent, by the steady clock: the answer was written between then and now.
        """
        if date is None or date == self._heard:
            return
        self._heard = date
        try:
            seconds = parsedate_to_datetime(date).timestamp()
        except ValueError:
            return
        least, most = seconds - self.steady(), seconds + 1.0 - sent
        if self._ahead < least - SLACK_SECONDS:
            self._ahead = least
        elif self._ahead > most + SLACK_SECONDS:
            self._ahead = most


class Budget:
    """Limits the writes per second, shared fairly between namespaces: a token bucket, and a cap on writes under way.

    Namespaces that wait are served in turn, so that a thousand jobs of one team do not delay the first of another. 429
    halves the rate, every second without one wins back a tenth.

    Args:
        rate: writes a second.
        burst: writes that may go at once after a quiet time.
        in_flight: most writes under way.
        clock: monotonic seconds of the event loop; None: its own.
    """

    def __init__(
        self,
        *,
        rate: float = 500.0,
        burst: float = 1000.0,
        in_flight: int = 64,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if rate < LEAST_RATE or burst < 1 or in_flight < 1:
            raise ValueError(f"--qps {rate:g} --burst {burst:g}: both must be at least 1.")
        self.rate = self._most = rate
        self._burst, self._free = burst, in_flight
        self._tokens = burst
        self._clock = clock
        self._filled: float | None = None
        self._refused = self._waited = float("-inf")
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Writes that wait for their turn."""
        return sum(map(len, self._waiting.values()))

    @property
    def busy(self) -> bool:
        """Whether a write waits, or waited a moment ago: between two turns there may be none."""
        return bool(self._waiting) or self._now() - self._waited < BUSY_SECONDS

    @contextlib.asynccontextmanager
    async def admit(self, namespace: str) -> AsyncIterator[None]:
        """Wait for the turn of one write of this namespace; it is under way until the block ends."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(namespace, deque()).append(turn)
        self._serve()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_back()
            raise
        try:
            yield
        finally:
            self._give_back()

    def answered(self, code: int) -> None:
        """Learn from the HTTP status of a write."""
        now = self._now()
        # All writes under way are refused together; that is one sign, not many.
        if code == 429 and now - self._refused >= 1.0:
            self._fill(now)
            self._refused = now
            self.rate = max(LEAST_RATE, self.rate / 2)
            self._tokens = min(self._tokens, self.rate)

    def _serve(self) -> None:
        now = self._now()
        self._fill(now)
        while self._waiting and self._free > 0 and self._tokens >= ONE_TOKEN:
            namespace, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[namespace] = turns  # behind the others
            if not turn.done():
                self._tokens -= 1.0
                self._free -= 1
                turn.set_result(None)
        if not self._waiting:
            return
        self._waited = now
        if self._free > 0 and self._timer is None:
            delay = (1.0 - self._tokens) / self.rate
            self._timer = asyncio.get_running_loop().call_later(delay, self._due)

    def _due(self) -> None:
        self._timer = None
        self._serve()

    def _fill(self, now: float) -> None:
        elapsed = max(0.0, now - self._filled) if self._filled is not None else 0.0
        self._filled = now
        quiet = min(elapsed, max(0.0, now - self._refused - 1.0))
        self.rate = min(self._most, self.rate + RECOVERY * self._most * quiet)
        self._tokens = min(self._burst, self._tokens + elapsed * self.rate)

    def _give_back(self) -> None:
        self._free += 1
        self._serve()

    def _now(self) -> float:
        return self._clock() if self._clock is not None else asyncio.get_running_loop().time()


class Api:
    """The API server.

    Args:
        session: to it.
        credentials: its address.
        budget: for writes; None: no limit.
        fence: for writes; None: always allowed.
        observe: called with every answer.
        time: the clock of the server, read from its answers; None: a new one.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        credentials: Credentials,
        *,
        budget: Budget | None = None,
        fence: Fence | None = None,
        observe: Observe = lambda _verb, _path, _code: None,
        time: ServerTime | None = None,
    ) -> None:
        self.session, self.credentials = session, credentials
        self.time = time or ServerTime()
        self._budget, self._fence, self._observe = budget, fence, observe

    @property
    def namespace(self) -> str:
        """The namespace of the context, or of the pod we run in."""
        return self.credentials.namespace

    @property
    def busy(self) -> bool:
        """Whether writes have to wait for the budget."""
        return self._budget is not None and self._budget.busy

    @property
    def leading(self) -> bool:
        """Whether this process may write now."""
        return self._fence is None or self._fence.left > 0

    def guarded(self, *, budget: Budget | None, fence: Fence | None, observe: Observe | None = None) -> "Api":
        """Return the same server with a budget and a fence for its writes."""
        observe = observe or self._observe
        return Api(self.session, self.credentials, budget=budget, fence=fence, observe=observe, time=self.time)

    def another_session(self) -> aiohttp.ClientSession:
        """Return another session on the same connections, for a library that closes what it is given."""
        assert self.session.connector is not None
        return session_for(self.credentials, self.session.connector, owner=False)

    async def request(
        self,
        verb: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout: float = REQUEST_SECONDS,  # noqa: ASYNC109 -- also bounds the kernel's part of it
        most: int = MAX_ANSWER_BYTES,
    ) -> bytes:
        """Return the body of the answer.

        Args:
            verb: GET, POST, PUT, PATCH or DELETE; all but GET wait for the budget.
            path: from the root of the server.
            params: of the query.
            body: bytes, or what msgspec encodes as JSON.
            content_type: of the body.
            accept: form of the answer, `Table` or `METADATA_OF_ONE` for instance; a log is no JSON and needs another.
            timeout: seconds from sending to the end of the answer; waiting for the budget does not count.
            most: bytes of the answer.

        Raises:
            TooLarge: the answer has more bytes.
            NotFound, Gone, AlreadyExists, Conflict, Rejected: see errors.py.
            Unavailable: no answer, half of one, or one that asks to come back: 401 after new credentials, 429, 5xx.
            Fenced: this process may not write now; nothing was sent.
        """
        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=CONNECT_SECONDS)
        options: dict[str, Any] = {"params": params, "headers": {"Accept": accept}, "timeout": limits}
        if verb == "GET":
            return await self._send(verb, path, options, most)
        content = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        options["data"] = _Fenced(content, content_type, self._check)
        if self._budget is None:
            return await self._send(verb, path, options, most)
        found = _NAMESPACE.search(path)
        async with self._budget.admit(found[1] if found else ""):
            return await self._send(verb, path, options, most)

    async def stream(self, path: str, params: Mapping[str, str]) -> AsyncIterator[bytes]:
        """Yield the lines of a watch, without their line breaks; ends when the server ends it.

        Raises:
            NotFound, Gone, Rejected: as `request`.
            Unavailable: no connection, or 70 s without a byte.
        """
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS)
        what = f"watch {path}"
        with _explained(what):
            async with self._open("GET", path, {"params": params, "timeout": limits}) as response:
                self._observe("WATCH", path, response.status)
                if response.status != 200:
                    raise refusal(response.status, await _read(response, what), what=what, retry_after=_after(response))
                async for line in _lines(response, what):
                    yield line

    async def _send(self, verb: str, path: str, options: Mapping[str, Any], most: int) -> bytes:
        what, code = f"{verb} {path}", 0
        if verb != "GET":
            self._check()  # a connection may have to be made first, so the body checks again
        sent = self.time.steady()
        try:
            with _explained(what):
                async with self._open(verb, path, options) as response:
                    code = response.status
                    self.time.note(response.headers.get("Date"), sent=sent)
                    answer = await _read(response, what, most)
                    if code < 300:
                        return _whole(answer, what) if options["headers"]["Accept"].startswith(JSON) else answer
                    # Of a half reason another one would be read.
                    said = _whole(answer, what) if response.content_type == JSON else answer
                    raise refusal(code, said, what=what, retry_after=_after(response))
        finally:
            self._observe(verb, path, code)
            if verb != "GET" and self._budget is not None:
                self._budget.answered(code)

    def _open(
        self, verb: str, path: str, options: Mapping[str, Any]
    ) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return self.session.request(verb, self.credentials.server + path, allow_redirects=False, **options)

    def _check(self) -> None:
        if self._fence is not None:
            self._fence.check()


@contextlib.asynccontextmanager
async def connected(context: str | None = None) -> AsyncIterator[Api]:
    """Yield the API server of a kubeconfig context, or of the cluster we run in. No request is made yet.

    Raises:
        ValueError: there is no usable configuration.
    """
    credentials = await Credentials.load(context)
    async with session_for(credentials, connector_for(credentials.tls)) as session:
        yield Api(session, credentials)


def connector_for(tls: ssl.SSLContext | None) -> aiohttp.BaseConnector:
    """Return connections to an API server; `tls`: None: it speaks plain HTTP."""
    return aiohttp.TCPConnector(
        limit=CONNECTIONS, ssl=tls if tls is not None else True, keepalive_timeout=60.0, socket_factory=_socket
    )


def session_for(
    credentials: Credentials, connector: aiohttp.BaseConnector, *, owner: bool = True
) -> aiohttp.ClientSession:
    """Return a session whose requests carry credentials; `owner`: it closes the connections with itself."""
    return aiohttp.ClientSession(
        connector=connector,
        connector_owner=owner,
        headers={"User-Agent": f"torchyard/{__version__}", "Accept": JSON, "Accept-Encoding": "identity"},
        middlewares=(authorizing(credentials),),
        proxy=credentials.proxy,
    )


def authorizing(credentials: Credentials) -> ClientMiddlewareType:
    """Return a middleware that adds credentials to each request of a session, once more after a 401."""

    async def authorize(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        if time.monotonic() > credentials.fresh_until:
            await credentials.refresh()
        used = credentials.authorization
        request.server_hostname = credentials.server_name
        if used is not None:
            request.headers["Authorization"] = used
        request.headers.extend(credentials.impersonation)
        response = await handler(request)
        if response.status == 401 and await credentials.changed_since(used):
            response.close()
            if credentials.authorization is not None:
                request.headers["Authorization"] = credentials.authorization
            response = await handler(request)
        return response

    return authorize


class _Fenced(BytesPayload):
    """A body that asks whether it may be sent when it is about to be. Headers wait for it in the same write."""

    def __init__(self, content: bytes, content_type: str, check: Callable[[], None]) -> None:
        super().__init__(content, content_type=content_type)
        self._check = check

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        self._check()
        await super().write_with_length(writer, content_length)


def _socket(address: Any) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNDELIVERED_SECONDS * 1000))
    return made


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """Broken connections and time-outs as `Unavailable`; a fence that closed while the request was made as `Fenced`."""
    try:
        yield
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        if isinstance(error.__cause__, Fenced):
            raise error.__cause__ from None
        said = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
        raise Unavailable(f"{what}: {said}") from error


async def _read(response: aiohttp.ClientResponse, what: str, most: int = MAX_ANSWER_BYTES) -> bytes:
    if response.content_length is not None and response.content_length <= most:
        return await response.read()
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > most:
            raise TooLarge(f"{what}: the answer is larger than {most} bytes")
        parts.append(part)
    return b"".join(parts)


def _whole(answer: bytes, what: str) -> bytes:
    """Return the answer, if it is JSON: a proxy may send a part of it, or its own page."""
    try:
        msgspec.json.decode(answer, type=msgspec.Raw)
    except msgspec.DecodeError as error:
        raise Unavailable(f"{what}: an answer that cannot be read: {error}") from None
    return answer


async def _lines(response: aiohttp.ClientResponse, what: str) -> AsyncIterator[bytes]:
    rest = b""
    async for part in response.content.iter_any():
        *lines, rest = (rest + part).split(b"\n") if rest else part.split(b"\n")
        for line in lines:
            if line:
                yield line
        if len(rest) > MAX_LINE_BYTES:
            raise Unavailable(f"{what}: a line is longer than {MAX_LINE_BYTES} bytes")
    if rest:
        yield rest


def _after(response: aiohttp.ClientResponse) -> str | None:
    return response.headers.get("Retry-After")
