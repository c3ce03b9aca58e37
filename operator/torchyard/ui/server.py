"""The HTTP server of `torchyard ui`: the page, its data, one stream of changes, and the actions of its user."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
from aiohttp import ClientConnectionResetError, web
from aiohttp.typedefs import Middleware

from torchyard.api.json_text import encoded
from torchyard.client.errors import FAILED, TorchYardError
from torchyard.client.location import Location
from torchyard.ui.access import HEADERS, Access
from torchyard.ui.content import Reader, Topic
from torchyard.ui.files import PREFIX
from torchyard.ui.live import Hub
from torchyard.ui.overlays import Wanted, overlay
from torchyard.ui.requests import Request, Requests

STATIC = Path(__file__).parent / "static"
LIBRARIES = ("preact.js", "uplot.js", "uplot.css")
TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
FOREVER = "private, max-age=31536000, immutable"
QUEUED = 1000
MAX_STREAMS = 64
PING_SECONDS = 10.0
MAX_BODY = 2 * 1024 * 1024
"""A specification has at most 1 MiB, which JSON may write longer."""

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Views(NamedTuple):
    """What one user watches, and what answers the requests of the user."""

    hub: Hub
    requests: Requests

    async def close(self) -> None:
        """End the streams of the user, and what was started for it."""
        await self.hub.close()
        await self.requests.close()


def application(places: dict[str, Location], access: Access) -> web.Application:
    """Return the application of the page of one user.

    Args:
        places: locations by the name that the page has for them.
        access: who may use it.

    Raises:
        TorchYardError: the libraries of the page are not installed.
    """
    reader = Reader(places)
    views = Views(Hub(reader), Requests(reader))

    async def shown(_request: web.Request) -> dict[str, Any]:
        return {"places": list(places), "shown": list(places)[:2]}

    app = page(lambda _request: views, shown, access.middleware)
    app.add_routes([web.get(f"{PREFIX}{{token}}/{{path:.*}}", views.requests.shelf.answer)])

    async def end(_app: web.Application) -> None:
        await views.close()

    app.on_shutdown.append(end)
    return app


def page(
    views: Callable[[web.Request], Views],
    places: Callable[[web.Request], Awaitable[dict[str, Any]]],
    access: Middleware,
) -> web.Application:
    """Return the page for one or more users.

    Args:
        views: returns those of the user of a request.
        places: returns what the page shows at first.
        access: rejects requests that are not from a user of the page.

    Raises:
        TorchYardError: the libraries of the page are not installed.
    """
    if missing := [name for name in LIBRARIES if not (STATIC / "lib" / name).is_file()]:
        what = f"the browser libraries of the page are not installed ({', '.join(missing)})"
        raise TorchYardError(what, "in a clone: `make install`; else install a released wheel", FAILED)
    app = web.Application(middlewares=[access, _errors], client_max_size=MAX_BODY)
    server = _Handlers(views, places)
    first, files = _static()
    app.add_routes(
        [
            web.get("/", _file(first, ".html", "no-store")),
            *(web.get(path, _file(data, Path(path).suffix, FOREVER)) for path, data in files.items()),
            web.get("/api/places", server.places),
            web.get("/api/topic", server.topic),
            web.get("/api/logs", server.logs),
            web.get("/api/stream", server.stream),
            web.post("/api/watch", server.watch),
            web.post("/api/overlay", server.overlay),
            web.post("/api/ask", server.ask),
        ]
    )
    return app


def _static() -> tuple[bytes, dict[str, bytes]]:
    """Return the first page, and the files that it names by path.

    The paths have the digest of all files, so that a browser keeps them until they change. The first page names all
    modules: else the browser would learn of each one from those that import it, one after the other.
    """
    paths = (path for path in sorted(STATIC.rglob("*")) if path.suffix in TYPES)
    files = {str(path.relative_to(STATIC)): path.read_bytes() for path in paths}
    digest = hashlib.blake2b(b"".join(files.values()), digest_size=12).hexdigest()
    first = files.pop("index.html").decode()
    modules = "".join(f'<link rel="modulepreload" href="/static/{name}">\n' for name in files if name.endswith(".js"))
    first = first.replace('<script type="module"', f'{modules}<script type="module"')
    named = {f"/static/{digest}/{name}": data for name, data in files.items()}
    return first.replace('"/static/', f'"/static/{digest}/').encode(), named


def _file(data: bytes, suffix: str, kept: str) -> Handler:
    async def answer(_request: web.Request) -> web.StreamResponse:
        headers = {"Cache-Control": kept}
        return web.Response(body=data, content_type=TYPES[suffix], charset="utf-8", headers=headers)

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
    return web.Response(body=encoded(value), content_type="application/json", status=status)


class _Watch(msgspec.Struct, frozen=True):
    topics: list[str]


class _Handlers:
    def __init__(
        self, views: Callable[[web.Request], Views], places: Callable[[web.Request], Awaitable[dict[str, Any]]]
    ) -> None:
        self._views, self._places = views, places

    async def places(self, request: web.Request) -> web.Response:
        return _json(await self._places(request))

    async def topic(self, request: web.Request) -> web.Response:
        content = await self._views(request).hub.content(_topic(request.query.get("topic", "")))
        if request.query.get("known") == content.digest:
            return web.Response(status=204)
        headers = {"X-TorchYard-Version": content.digest}
        return web.Response(body=content.data, content_type="application/json", status=content.status, headers=headers)

    async def logs(self, request: web.Request) -> web.Response:
        since = request.query.get("since", "0")
        if not since.isdigit() or len(since) > 15:
            raise TorchYardError(f"since={since[:20]!r} is not a number")
        return _json(self._views(request).hub.lines(_topic(request.query.get("topic", "")), int(since)))

    async def watch(self, request: web.Request) -> web.Response:
        wanted, hub = _decoded(await request.read(), _Watch), self._views(request).hub
        for text in wanted.topics[:32]:
            hub.watch(_topic(text))
        return _json({})

    async def overlay(self, request: web.Request) -> web.Response:
        found = await overlay(self._views(request).hub.reader, _decoded(await request.read(), Wanted))
        return web.Response(status=204) if found is None else web.Response(body=found)

    async def ask(self, request: web.Request) -> web.Response:
        return _json(await self._views(request).requests.answer(_decoded(await request.read(), Request)))

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Send the topics that change, as server-sent events; the browser connects again by itself."""
        hub = self._views(request).hub
        if len(hub.streams) >= MAX_STREAMS:
            raise TorchYardError(f"more than {MAX_STREAMS} browsers show the page", "close some")
        # A proxy in front of it must not keep lines back.
        headers = {**HEADERS, "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        queue: asyncio.Queue[bytes] = asyncio.Queue(QUEUED)
        hub.streams.add(queue)
        try:
            await response.write(b"retry: 500\n\nevent: hello\ndata: {}\n\n")
            while not hub.ended.is_set():
                try:
                    message = await asyncio.wait_for(queue.get(), PING_SECONDS)
                except TimeoutError:
                    await response.write(b": still here\n\n")
                else:
                    await response.write(b"data: " + message + b"\n\n")
        except (ConnectionResetError, ClientConnectionResetError):
            pass  # the tab was closed
        finally:
            hub.streams.discard(queue)
        return response


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
