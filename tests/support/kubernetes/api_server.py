"""An HTTP server on loopback that answers as a test says, and a client of it with a kubeconfig of its own."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from aiohttp import web
from tests.support.waiting import DEADLINE

from torchyard.kubernetes.client.api import Api, connected

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def refused(code: int, reason: str = "", message: str = "", **fields: object) -> web.Response:
    """A `meta/v1.Status` as API servers send it."""
    body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message, **fields}
    return web.json_response(body, status=code)


@contextlib.asynccontextmanager
async def serving(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Its base URL."""
    app = web.Application(client_max_size=2**24)
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def kubeconfig(
    folder: Path, url: str, user: dict | None = None, *, namespace: str | None = None, cluster: dict | None = None
) -> Path:
    """A kubeconfig file with one context, `test`."""
    context = {"cluster": "test", "user": "test"} | ({"namespace": namespace} if namespace else {})
    file = folder / "kubeconfig"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": url} | (cluster or {})}],
        "users": [{"name": "test", "user": user or {}}],
        "contexts": [{"name": "test", "context": context}],
    }
    file.write_text(json.dumps(document))
    return file


@contextlib.asynccontextmanager
async def talking(folder: Path, answer: Answer, monkeypatch, user: dict | None = None) -> AsyncIterator[Api]:
    """A client of a server that answers so."""
    async with serving(answer) as url:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(folder, url, user)))
        async with connected() as api:
            yield api


async def until(condition: Callable[[], object], seconds: float = DEADLINE) -> None:
    """Wait for something that another task or process does."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 -- the condition belongs to the other side of a socket
            await asyncio.sleep(0.002)
