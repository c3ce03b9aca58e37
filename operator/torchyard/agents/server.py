"""The listening server for agents: `POST /v1/sync` over HTTP, with TLS on a cluster.

On one machine it listens on a Unix domain socket. Anyone can listen on a loopback port: once a controller has died,
another user's program could listen there and receive the tokens of pods. A socket in a private folder cannot be taken
over. Its address is limited to 108 bytes, a path to 4096; therefore it is bound, and connected to, through the
descriptor of its folder: `/proc/self/fd/N/intake.sock` is always short.
"""

import asyncio
import contextlib
import functools
import math
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from torchyard.agents.http.acceptor import Acceptor
from torchyard.agents.http.admission import Admission, Buckets, Limits, Slot
from torchyard.agents.http.connection import Connection, Handle, Request, Response
from torchyard.agents.registry import (
    MAX_BODY_BYTES,
    AgentRegistry,
    Counters,
    SupersededError,
    decode,
    without_figures,
)

SWEEP_SECONDS = 2.0
END_SECONDS = 2.0
BUFFER_BYTES = 64 * 1024

Authenticate = Callable[[str], Awaitable[str | None]]
"""Bearer token -> pod uid, None: rejected. May raise: the agent is then asked to retry later."""

PATH = "/v1/sync"
MAX_TOKEN_CHARACTERS = 16 * 1024
MAX_WELCOME = 50_000

ELSEWHERE = Response(
    503, {"error": "This operator is not the leader: retry, another one answers."}, retry_after=1, close=True
)


@dataclass(frozen=True)
class Application:
    """The handler of requests, its counters, and the limits of connections."""

    handle: Handle
    counters: Counters
    limits: Limits


def application(
    registry: AgentRegistry,
    authenticate: Authenticate,
    *,
    serving: Callable[[], bool] = lambda: True,
    limits: Limits | None = None,
) -> Application:
    """Return the application of one registry.

    Args:
        registry: state and commands of the agents.
        authenticate: returns the pod of a token; nothing else identifies an agent.
        serving: whether this process leads and knows its pods; otherwise agents are redirected.
        limits: None: the default limits.
    """
    limits = limits or Limits()
    return Application(Sync(registry, authenticate, serving, limits).handle, registry.counters, limits)


class Sync:
    """Answers requests from one registry.

    Args:
        registry: state and commands of the agents.
        authenticate: returns the pod of a token.
        serving: whether this process leads and knows its pods; otherwise agents are redirected.
        limits: of pods and addresses.
    """

    def __init__(
        self, registry: AgentRegistry, authenticate: Authenticate, serving: Callable[[], bool], limits: Limits
    ) -> None:
        self._registry, self._authenticate, self._serving = registry, authenticate, serving
        self._limits = limits
        self._welcome: set[int] = set()
        self._refusals = Buckets(limits.refusals_per_second, limits.refusals_burst, time.monotonic)

    async def handle(self, request: Request) -> Response:
        """Answer one request; a long poll waits until there is a new command."""
        if request.path != PATH or request.method != "POST":
            return _error(405 if request.path == PATH else 404, f"The only endpoint here is `POST {PATH}`.")
        if not self._serving():
            self._registry.counters.elsewhere += 1
            return ELSEWHERE
        pod_uid = await self._authenticated_pod(request)
        if isinstance(pod_uid, Response):
            return pod_uid
        request.proven()
        if wait := self._registry.throttle(pod_uid, rate=self._limits.syncs_per_second, burst=self._limits.syncs_burst):
            return self._limited("This pod sends requests too often.", wait)
        try:
            message = decode(request.body)
        except ValueError as error:
            self._registry.counters.malformed += 1
            return _error(400, str(error))
        del request  # token and figures are not kept while the request waits
        try:
            self._registry.record(pod_uid, message)
            message = without_figures(message)
            await self._registry.long_poll(pod_uid, message)
        except SupersededError:
            return _error(409, "superseded")
        return Response(200, self._registry.answer(pod_uid))

    async def _authenticated_pod(self, request: Request) -> str | Response:
        """Return the pod of the request, or the response that rejects it."""
        counters = self._registry.counters
        scheme, _, token = request.authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN_CHARACTERS:
            counters.refused += 1
            return _error(401, "`Authorization: Bearer <token>` is missing.")
        # Known pods are not limited by others behind the same address.
        if hash(token) not in self._welcome and (wait := self._refusals.wait(request.peer)):
            return self._limited(f"Too many tokens from {request.peer} were rejected.", wait)
        try:
            pod_uid = await self._authenticate(token)
        except Exception as error:  # noqa: BLE001 - whatever the authenticator met, the agent must try again later
            counters.unavailable += 1
            return Response(503, {"error": f"The token could not be checked: {type(error).__name__}."}, retry_after=2)
        if pod_uid is None:
            self._refusals.take(request.peer)
            counters.refused += 1
            return _error(403, "The token does not belong to a pod of this operator.")
        if len(self._welcome) >= MAX_WELCOME:
            self._welcome.clear()
        self._welcome.add(hash(token))
        return pod_uid

    def _limited(self, sentence: str, wait: float) -> Response:
        self._registry.counters.limited += 1
        return Response(429, {"error": sentence}, retry_after=math.ceil(wait))


def _error(status: int, sentence: str) -> Response:
    return Response(status, {"error": sentence})


class Intake:
    """A listening server: `async with Intake(app, ...) as intake: intake.port`.

    Args:
        app: from `application`.
        host: address to listen on.
        port: 0: any free one.
        tls: server context; None only for loopback addresses.
        listener: a bound socket, instead of host and port.

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
        self._admission = Admission(app.limits)
        self.buffer = memoryview(bytearray(BUFFER_BYTES))
        self._connections: set[Connection] = set()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._empty = asyncio.Event()
        self.port = port

    @property
    def connections(self) -> int:
        """Return the number of open connections."""
        return len(self._connections)

    @property
    def url(self) -> str:
        """Return the base URL for agents."""
        return f"{'https' if self._tls else 'http'}://{self._host}:{self.port}"

    async def __aenter__(self) -> Self:
        """Start listening."""
        if self._listener is None:
            self._listener = _bound(self._host, self.port)
            self.port = self._listener.getsockname()[1]
        self._loop = asyncio.get_running_loop()
        secure = self._tls is not None
        counters = self._app.counters
        self._acceptor = Acceptor(self._listener, self._admission, counters, self._begin, awaits_byte=secure)
        self._sweeper = asyncio.create_task(self._sweep())
        await asyncio.sleep(0)  # it has started
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """As `close`."""
        await self.close()

    async def close(self) -> None:
        """Stop listening, redirect all agents, and wait briefly for open connections."""
        self._acceptor.close()
        for task in (self._sweeper, *self._handshakes):
            task.cancel()
        await asyncio.gather(self._sweeper, *self._handshakes, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
        self.dismiss()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                while self._connections:
                    self._empty.clear()
                    await self._empty.wait()
        for connection in tuple(self._connections):
            connection.abort()

    def dismiss(self) -> None:
        """End every connection, long polls with 503: this process no longer leads, and agents will find the leader."""
        for connection in tuple(self._connections):
            connection.end(ELSEWHERE)

    def _begin(self, accepted: socket.socket, slot: Slot, seconds: float) -> None:
        """Start on an admitted connection, whose handshake may take `seconds`."""
        task = self._loop.create_task(self._open(accepted, slot, seconds))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def _open(self, accepted: socket.socket, slot: Slot, seconds: float) -> None:
        """Start TLS and then HTTP on an admitted connection."""
        try:
            await self._loop.connect_accepted_socket(
                functools.partial(Connection, self._app.handle, self, slot, max_body=MAX_BODY_BYTES),
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=seconds if self._tls else None,
                ssl_shutdown_timeout=END_SECONDS if self._tls else None,
            )
        except OSError:  # also of TLS: an error of the peer
            self._app.counters.failed_handshakes += 1
            self._admission.leave(slot)
            accepted.close()
        except asyncio.CancelledError:
            self._admission.leave(slot)
            accepted.close()
            raise

    def opened(self, connection: Connection) -> None:
        """Count a connection that has completed its handshake."""
        slot = connection.slot
        slot.close, slot.is_owed = connection.abort, functools.partial(_is_owed, connection, slot.is_owed)
        self._admission.progress(slot)
        self._connections.add(connection)

    def proven(self, connection: Connection) -> None:
        """Record a valid token, once for a connection."""
        if not connection.slot.proven:
            self._admission.prove(connection.slot)

    def refused(self, status: int) -> None:
        """Count a request that was rejected before it was complete."""
        if status == 413:
            self._app.counters.too_large += 1
        else:
            self._app.counters.malformed += 1

    def closed(self, connection: Connection) -> None:
        """Forget a closed connection."""
        self._connections.discard(connection)
        self._admission.leave(connection.slot)
        self._empty.set()

    async def _sweep(self) -> None:
        """Close connections that are too slow or idle; one periodic check is cheaper than a timer for each."""
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = clock()
            for connection in tuple(self._connections):
                if connection.deadline < now:
                    connection.abort()


def _bound(host: str, port: int) -> socket.socket:
    """Return a socket bound to an address; without a host, to all addresses of both families."""
    if not host:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        return socket.create_server(("", port), family=family, dualstack_ipv6=both)
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(address[:2], family=family)


def _is_owed(connection: Connection, has_sent: Callable[[], bool]) -> bool:
    """Return whether the peer waits for this process: for an answer, or for its bytes to be read."""
    return connection.is_answering or has_sent()


@contextlib.asynccontextmanager
async def unix_intake(app: Application, path: Path) -> AsyncIterator[str]:
    """Listen on a socket; yield the base URL for agents.

    Args:
        app: from `server.application`.
        path: of the socket. A socket of a former process is replaced; the caller ensures that it is dead.

    Raises:
        OSError: on entering, if no socket can be created in the folder.
    """
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listener = await asyncio.to_thread(_bind, folder, path.name)
        try:
            async with Intake(app, listener=listener):
                yield f"unix:{path}"
        finally:
            listener.close()
            # By descriptor: a run of the same name may have replaced the folder at this path.
            await asyncio.to_thread(_unlink, folder, path.name)
    finally:
        os.close(folder)


def _bind(folder: int, name: str) -> socket.socket:
    _unlink(folder, name)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(listener.fileno(), 0o600)  # the bound socket inherits it
        listener.bind(f"/proc/self/fd/{folder}/{name}")
    except BaseException:
        listener.close()
        raise
    return listener


def _unlink(folder: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
