"""The HTTP server of `torchyard ui`: the page, its data, one stream of changes, and the actions of its user."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import msgspec
from aiohttp import ClientConnectionResetError, web

from torchyard.client.errors import FAILED, TorchYardError
from torchyard.client.location import Location
from torchyard.ui.access import HEADERS, Access
from torchyard.ui.content import Reader, Topic
from torchyard.ui.files import PREFIX
from torchyard.ui.live import Hub
from torchyard.ui.requests import Request, Requests

STATIC = Path(__file__).parent / "static"
LIBRARIES = ("preact.js", "uplot.js", "uplot.css")
TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
QUEUED = 1000
PING_SECONDS = 10.0
MAX_BODY = 2 * 1024 * 1024
"""A specification has at most 1 MiB, which JSON may write longer."""

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(places: dict[str, Location], access: Access) -> web.Application:
    """Return the application.

    Args:
        places: locations by the name that the page has for them.
        access: who may use it.

    Raises:
        TorchYardError: the libraries of the page are not installed.
    """
    if missing := [name for name in LIBRARIES if not (STATIC / "lib" / name).is_file()]:
        what = f"the browser libraries of the page are not installed ({', '.join(missing)})"
        raise TorchYardError(what, "in a clone: `make install`; else install a released wheel", FAILED)
    app = web.Application(middlewares=[access.middleware, _errors], client_max_size=MAX_BODY)
    hub = Hub(Reader(places))
    server = _Handlers(hub)
    app.add_routes(
        [
            web.get("/", _file("index.html")),
            *(
                web.get(f"/static/{path.relative_to(STATIC)}", _file(str(path.relative_to(STATIC))))
                for path in sorted(STATIC.rglob("*"))
                if path.suffix in TYPES and path.name != "index.html"
            ),
            web.get("/api/places", server.places),
            web.get("/api/topic", server.topic),
            web.get("/api/logs", server.logs),
            web.get("/api/stream", server.stream),
            web.post("/api/watch", server.watch),
            web.post("/api/ask", server.ask),
            web.get(f"{PREFIX}{{token}}/{{path:.*}}", server.requests.shelf.answer),
        ]
    )
    app.on_shutdown.append(server.end)
    return app


def _file(name: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    path = STATIC / name

    async def answer(_request: web.Request) -> web.Response:
        data = await asyncio.to_thread(path.read_bytes)
        return web.Response(body=data, content_type=TYPES[path.suffix], charset="utf-8")

    return answer


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer with what a user can do about an error."""
    try:
        return await handler(request)
    except TorchYardError as error:
        problems = [str(each) for each in getattr(error, "problems", ())]
        return _json({"error": error.sentence, "fix": error.fix, "problems": problems}, 400)


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json", status=status)


class _Watch(msgspec.Struct, frozen=True):
    topics: list[str]


class _Handlers:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.requests = Requests(hub.reader)
        self._ended = asyncio.Event()

    async def places(self, _request: web.Request) -> web.Response:
        places = self._hub.reader.places
        return _json({"places": list(places), "shown": list(places)[:2]})

    async def topic(self, request: web.Request) -> web.Response:
        topic = _topic(request.query.get("topic", ""))
        return web.Response(body=await self._hub.content(topic), content_type="application/json")

    async def logs(self, request: web.Request) -> web.Response:
        since = request.query.get("since", "0")
        if not since.isdigit() or len(since) > 15:
            raise TorchYardError(f"since={since[:20]!r} is not a number")
        return _json(self._hub.lines(_topic(request.query.get("topic", "")), int(since)))

    async def watch(self, request: web.Request) -> web.Response:
        wanted = _decoded(await request.read(), _Watch)
        for text in wanted.topics[:32]:
            self._hub.watch(_topic(text))
        return _json({})

    async def ask(self, request: web.Request) -> web.Response:
        return _json(await self.requests.answer(_decoded(await request.read(), Request)))

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Send the topics that change, as server-sent events; the browser connects again by itself."""
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        await response.prepare(request)
        queue: asyncio.Queue[bytes] = asyncio.Queue(QUEUED)
        self._hub.streams.add(queue)
        try:
            await response.write(b"retry: 500\n\nevent: hello\ndata: {}\n\n")
            while not self._ended.is_set():
                try:
                    message = await asyncio.wait_for(queue.get(), PING_SECONDS)
                except TimeoutError:
                    await response.write(b": still here\n\n")
                else:
                    await response.write(b"data: " + message + b"\n\n")
        except (ConnectionResetError, ClientConnectionResetError):
            pass  # the tab was closed
        finally:
            self._hub.streams.discard(queue)
        return response

    async def end(self, _app: web.Application) -> None:
        self._ended.set()
        for stream in self._hub.streams:
            with contextlib.suppress(asyncio.QueueFull):
                stream.put_nowait(b"{}")
        await self._hub.close()
        await self.requests.close()


def _topic(text: str) -> Topic:
    topic = Topic.parse(text)
    if topic is None:
        raise TorchYardError(f"there is no topic {text[:80]!r}", "one is jobs|here or job|here|NAME")
    return topic


def _decoded(data: bytes, type_: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=type_)
    except (msgspec.DecodeError, RecursionError) as error:
        raise TorchYardError(f"the request cannot be read: {error}") from error
