"""Between an operator and the API server: passes requests on, remembers them, and holds back what a test wants held."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

from aiohttp import ClientError, ClientTimeout, web

from torchyard.cluster.kube.client import Api

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "authorization"}


class Request(NamedTuple):
    """One request as it arrived."""

    at: float
    verb: str
    path: str

    @property
    def writes(self) -> bool:
        """Whether it changes anything but the lease; reviews of tokens change nothing."""
        return self.verb != "GET" and "/leases" not in self.path and not self.path.endswith("/tokenreviews")


class FaultProxy:
    """An HTTP proxy in front of an API server.

    Attributes:
        requests: all that arrived, in order, also those held back.
        held: says of a request whether it is held back: it is neither passed on nor answered.
    """

    def __init__(self, api: Api) -> None:
        self.requests: list[Request] = []
        self.held: Callable[[Request], bool] = lambda _request: False
        self._api = api
        self._changed = asyncio.Event()
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

    def kubeconfig(self, file: Path) -> Path:
        """A kubeconfig that goes this way, with the rights of the tests."""
        context = {"name": "proxied", "context": {"cluster": "proxied", "user": "proxied"}}
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
        seen = Request(time.monotonic(), request.method, request.path)
        self.requests.append(seen)
        while self.held(seen):  # noqa: ASYNC110 -- the test decides
            await asyncio.sleep(0.05)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
        upstream = self._api.session.request(
            request.method,
            self._api.credentials.server + request.path_qs,
            data=await request.read() or None,
            headers=headers,
            timeout=ClientTimeout(total=None, sock_connect=5),
        )
        async with upstream as answer:
            passed = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_BY_HOP}
            response = web.StreamResponse(status=answer.status, headers=passed)
            await response.prepare(request)
            with contextlib.suppress(ClientError):
                async for part in answer.content.iter_any():
                    while self.held(seen):  # noqa: ASYNC110 -- the test decides
                        await asyncio.sleep(0.05)
                    await response.write(part)
            return response
