"""Between an operator and the API server: passes requests on, remembers them, and lets a test meddle with them."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

from aiohttp import ClientError, ClientTimeout, web

from torchyard.kubernetes.client.api import Api

QUIET_SECONDS = 1.0
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "authorization"}


class Request(NamedTuple):
    """One request as it arrived."""

    at: float
    verb: str
    path: str
    query: str = ""
    headers: dict[str, str] = {}  # noqa: RUF012 -- nobody changes them
    body: bytes = b""
    by: str = ""
    """Name of the proxy it came by: who sent it, where each has one of its own."""

    @property
    def watches(self) -> bool:
        """Whether it asks for news."""
        return bool({"watch=1", "watch=true"} & set(self.query.split("&")))

    @property
    def writes(self) -> bool:
        """Whether it changes anything but the lease; reviews of tokens change nothing."""
        return self.verb != "GET" and "/leases" not in self.path and not self.path.endswith("/tokenreviews")


class Answer(NamedTuple):
    """What the client receives."""

    status: int
    body: bytes
    headers: dict[str, str] = {}  # noqa: RUF012 -- nobody changes them


class CutError(Exception):
    """The connection is cut instead of an answer, or in the middle of `answer`."""

    def __init__(self, answer: Answer | None = None) -> None:
        super().__init__()
        self.answer = answer


class Tamper:
    """What is done to that which passes: here nothing at all."""

    async def before(self, request: Request) -> Answer | None:
        """An answer in place of the server's, which then hears of nothing; None: pass it on.

        Raises:
            CutError: neither the client nor the server receives anything.
        """

    async def after(self, request: Request, answer: Answer) -> Answer:
        """Return what the client receives of the server's answer.

        Raises:
            CutError: the client receives nothing.
        """
        return answer

    async def line(self, request: Request, line: bytes | None) -> list[bytes]:
        """Return what the client receives in place of one line of a watch; None: nothing came for a while.

        Raises:
            CutError: the watch ends here.
        """
        return [line] if line else []


class FaultProxy:
    """An HTTP proxy in front of an API server.

    Args:
        api: the server.
        name: of requests that come this way.

    Attributes:
        requests: all that arrived, in order, also those held back.
        held: whether a request is held back: it is neither passed on nor answered.
        tamper: what is done to the others.
    """

    def __init__(self, api: Api, name: str = "") -> None:
        self.name = name
        self.requests: list[Request] = []
        self.held: Callable[[Request], bool] = lambda _request: False
        self.tamper = Tamper()
        self._api = api
        self.url = ""

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator["FaultProxy"]:
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", self._pass)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.2)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    def kubeconfig(self, file: Path, namespace: str = "default") -> Path:
        """A kubeconfig that goes this way, with the rights of the tests."""
        context = {"name": "proxied", "context": {"cluster": "proxied", "user": "proxied", "namespace": namespace}}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "proxied",
            "clusters": [{"name": "proxied", "cluster": {"server": self.url}}],
            "users": [{"name": "proxied", "user": {}}],
            "contexts": [context],
        }
        file.write_text(json.dumps(document))
        return file

    def writes(self, since: float = 0.0) -> list[Request]:
        """What would have changed something, from then on."""
        return [request for request in self.requests if request.writes and request.at >= since]

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        at, body = time.monotonic(), await request.read()
        headers = _passed(request.headers)
        seen = Request(at, request.method, request.path, request.query_string, headers, body, self.name)
        self.requests.append(seen)
        await self._hold(seen)
        try:
            answer = await self.tamper.before(seen)
            if answer is None and seen.watches:
                return await self._stream(request, seen)
            if answer is None:
                answer = await self.tamper.after(seen, await self.ask(seen))
        except CutError as cut:
            if cut.answer is not None:
                await _begin(request, cut.answer)
            assert request.transport is not None
            request.transport.abort()
            raise asyncio.CancelledError from None  # there is nobody to answer
        await self._hold(seen)
        return web.Response(status=answer.status, body=answer.body, headers=answer.headers)

    async def _hold(self, seen: Request) -> None:
        while self.held(seen):  # noqa: ASYNC110 -- the test decides
            await asyncio.sleep(0.05)

    async def ask(self, seen: Request) -> Answer:
        """Pass a request on."""
        async with self._upstream(seen) as answer:
            return Answer(answer.status, await answer.read(), _passed(answer.headers))

    async def _stream(self, request: web.Request, seen: Request) -> web.StreamResponse:
        async with self._upstream(seen) as answer:
            response = web.StreamResponse(status=answer.status, headers=_passed(answer.headers))
            await response.prepare(request)
            with contextlib.suppress(ClientError, CutError):
                async for line in _lines(answer.content):
                    for told in await self.tamper.line(seen, line):
                        await self._hold(seen)
                        await response.write(told)
            return response

    def _upstream(self, seen: Request):
        return self._api.session.request(
            seen.verb,
            f"{self._api.credentials.server}{seen.path}{'?' if seen.query else ''}{seen.query}",
            data=seen.body or None,
            headers=seen.headers,
            timeout=ClientTimeout(total=None, sock_connect=5),
            read_bufsize=2**22,  # a line is an object
        )


async def _begin(request: web.Request, answer: Answer) -> None:
    """Send half of an answer."""
    response = web.StreamResponse(status=answer.status, headers=answer.headers)
    response.content_length = len(answer.body)
    await response.prepare(request)
    await response.write(answer.body[: len(answer.body) // 2])


def _passed(headers) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in HOP_BY_HOP}


async def _lines(content) -> AsyncIterator[bytes | None]:
    """The lines of a body with their ends, and None whenever nothing comes for a while."""
    coming = asyncio.ensure_future(content.readline())
    try:
        while True:
            await asyncio.wait({coming}, timeout=QUIET_SECONDS)
            if not coming.done():
                yield None
                continue
            line = coming.result()
            if not line:
                return
            coming = asyncio.ensure_future(content.readline())
            yield line
    finally:
        coming.cancel()
