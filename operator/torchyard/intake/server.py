"""The HTTP side of the intake: `POST /v1/sync`. Who may speak for a pod is decided by an injected `authenticate`."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import msgspec
from aiohttp import web

from torchyard.intake.book import Book, SupersededError
from torchyard.intake.wire import MAX_BODY_BYTES, decode

Authenticate = Callable[[str], Awaitable[str | None]]
"""Bearer token -> pod uid, None: refused. May raise: the agent is then asked to come back later."""

MAX_TOKEN_CHARACTERS = 16 * 1024
BODY_SECONDS = 10.0


def application(book: Book, authenticate: Authenticate) -> web.Application:
    """The aiohttp application; it owns nothing but its routes."""

    async def sync(request: web.Request) -> web.Response:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN_CHARACTERS:
            book.counters.refused += 1
            return _error(401, "`Authorization: Bearer <token>` is missing.")
        try:
            pod_uid = await authenticate(token)
        except Exception as error:  # noqa: BLE001 - whatever the authenticator met, the agent must try again later
            book.counters.unavailable += 1
            return _error(503, f"The token could not be checked: {type(error).__name__}.")
        if pod_uid is None:
            book.counters.refused += 1
            return _error(403, "The token is not the one of a pod that this operator runs.")
        try:
            async with asyncio.timeout(BODY_SECONDS):
                message = decode(await request.read())
        except web.HTTPRequestEntityTooLarge:
            book.counters.too_large += 1
            return _error(413, f"The body is larger than {MAX_BODY_BYTES} bytes.")
        except TimeoutError:
            return _error(408, f"The body did not arrive within {BODY_SECONDS:g} seconds.")
        except ValueError as error:
            book.counters.malformed += 1
            return _error(400, str(error))
        try:
            book.hear(pod_uid, message)
            await book.hold(pod_uid, message)
        except SupersededError:
            return _error(409, "superseded")
        return _json(200, book.answer(pod_uid))

    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.router.add_post("/v1/sync", sync)
    return app


class Intake:
    """A listening intake, to be used as `async with Intake(app, ...) as intake: intake.port`.

    Args:
        app: what `application` made.
        host: address to listen on.
        port: 0: any free one.
        tls: server context; None only for loopback addresses.

    Raises:
        OSError: on entering, when the port is taken.
    """

    def __init__(
        self, app: web.Application, *, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
    ) -> None:
        # A poll whose agent died is cancelled, so that it does not count as connected.
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.5)
        self._host = host
        self._tls = tls
        self.port = port

    async def __aenter__(self) -> Self:
        """Start listening."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self.port, ssl_context=self._tls, reuse_address=True)
        try:
            await site.start()
        except BaseException:
            await self._runner.cleanup()
            raise
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop listening and end every held poll."""
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        """Base URL for agents."""
        return f"{'https' if self._tls else 'http'}://{self._host}:{self.port}"


def _json(status: int, document: object) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(document), content_type="application/json")


def _error(status: int, sentence: str) -> web.Response:
    return _json(status, {"error": sentence})
