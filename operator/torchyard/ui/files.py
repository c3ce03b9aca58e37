"""Artifacts of jobs in the browser: pictures, text, and exported pages, which run confined.

What a job wrote is served below `/files/TOKEN/`, one random token for each artifact that the user opened. Its policy
makes a page of it a separate origin (`sandbox`), which can read the files of this artifact and nothing else: not the
page's cookie or data, no other artifact, no other server.
"""

import asyncio
import os
import secrets
import shutil
import tempfile
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web

from torchyard.api.formatting import clean
from torchyard.client.artifacts import Allowance, inside
from torchyard.client.backend import Backend
from torchyard.client.errors import FAILED, TorchYardError
from torchyard.client.local import find
from torchyard.local.run import home_folder

PREFIX = "/files/"
MAX_OPEN = 32
MAX_FILES = 500
MAX_SIZE = "256Mi"
MAX_BYTES = 256 * 2**20
PICTURES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif",
            ".webp": "image/webp", ".svg": "image/svg+xml"}  # fmt: skip
TEXTS = {".txt": "text/plain", ".md": "text/plain", ".json": "application/json", ".jsonl": "text/plain",
         ".csv": "text/plain", ".yaml": "text/plain", ".log": "text/plain"}  # fmt: skip
PAGES = {".html": "text/html"}
OTHERS = {".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css", ".wasm": "application/wasm",
          ".mp4": "video/mp4", ".webm": "video/webm", ".wav": "audio/wav"}  # fmt: skip
TYPES = PICTURES | TEXTS | PAGES | OTHERS
KINDS = (("picture", PICTURES), ("text", TEXTS), ("page", PAGES))


class _Opened(NamedTuple):
    root: Path
    """A folder, or one file."""
    copy: Path | None
    """The folder to delete when it is closed; None: it belongs to a run of this machine."""


class Shelf:
    """The artifacts that the page has opened; the oldest is closed when there are more than `MAX_OPEN`."""

    def __init__(self) -> None:
        self._opened: OrderedDict[str, _Opened] = OrderedDict()

    async def open(self, backend: Backend, name: str, path: str) -> dict[str, Any]:
        """Open an artifact; return its address and its files. A job of a cluster sends at most `MAX_BYTES`.

        Raises:
            TorchYardError: there is no such artifact, it is too large, or no pod can read it.
        """
        wanted = inside(path)
        opened = _Opened(_of_run(name, wanted), None) if not backend.cluster else await _fetched(backend, name, wanted)
        while len(self._opened) >= MAX_OPEN:
            await self._close(self._opened.popitem(last=False)[1])
        token = secrets.token_urlsafe(24)
        self._opened[token] = opened
        files, left_out = await asyncio.to_thread(_files, opened.root)
        return {"url": f"{PREFIX}{token}/", "files": files, "leftOut": left_out}

    async def close(self) -> None:
        """Delete all copies."""
        while self._opened:
            await self._close(self._opened.popitem()[1])

    async def _close(self, opened: _Opened) -> None:
        if opened.copy is not None:
            await asyncio.to_thread(shutil.rmtree, opened.copy, ignore_errors=True)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer with a file."""
        token, name = request.match_info["token"], request.match_info["path"]
        opened = self._opened.get(token)
        path = None if opened is None else await asyncio.to_thread(_inside, opened.root, name)
        if path is None:
            raise web.HTTPNotFound(text="There is no such file, or it was closed: open the artifact again.")
        headers = {
            "Content-Type": TYPES.get(path.suffix.lower(), "application/octet-stream"),
            "Content-Security-Policy": policy(request.host, token),
            "Access-Control-Allow-Origin": "*",  # its own scripts come from no origin, and the token is the secret
            "Cross-Origin-Resource-Policy": "cross-origin",
        }
        if "download" in request.query:
            headers["Content-Disposition"] = "attachment"
        return web.FileResponse(path, headers=headers)


def policy(host: str, token: str) -> str:
    """Return the policy of a file: a separate origin, scripts and data of this artifact alone (pure)."""
    own = f"http://{host}{PREFIX}{token}/"
    return (
        f"sandbox allow-scripts; default-src 'none'; script-src {own} 'unsafe-inline' 'wasm-unsafe-eval' blob:; "
        f"worker-src {own} blob:; style-src {own} 'unsafe-inline'; img-src {own} data: blob:; "
        f"media-src {own} data: blob:; font-src {own} data:; connect-src {own} data: blob:; base-uri 'none'; "
        f"form-action 'none'; frame-ancestors http://{host}"
    )


def _of_run(name: str, wanted: Path) -> Path:
    folder = find(name).checkpoints
    path = folder / wanted
    if not path.exists() or not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise TorchYardError(f"the run {name!r} has no {wanted}", "open its page again")
    return path


async def _fetched(backend: Backend, name: str, wanted: Path) -> _Opened:
    parent = home_folder() / "cache" / "ui"
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    copy = Path(tempfile.mkdtemp(prefix="artifact-", dir=parent))
    try:
        await backend.fetch(name, wanted, copy / wanted.name, Allowance(MAX_BYTES, MAX_SIZE))
    except BaseException:
        await asyncio.to_thread(shutil.rmtree, copy, ignore_errors=True)
        raise
    return _Opened(copy / wanted.name, copy)


def _inside(root: Path, name: str) -> Path | None:
    """Return a regular file of an artifact; None: there is none, or it is a link out of it."""
    path = root if root.is_file() and name == root.name else root / name
    real = Path(os.path.realpath(path))
    return real if real.is_relative_to(os.path.realpath(root)) and real.is_file() else None


def _files(root: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the files of an artifact by path, pages and pictures first, and the number of those left out."""
    if root.is_file():
        return [_file(root, root.parent)], 0
    found: list[dict[str, Any]] = []
    count = 0
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            count += 1
            if count > 20 * MAX_FILES:
                break
            path = Path(folder, name)
            if _inside(root, path.relative_to(root).as_posix()) is not None:
                found.append(_file(path, root))
    order = {"page": 0, "picture": 1}
    found.sort(key=lambda each: order.get(each["kind"], 2))
    if not found and not root.exists():
        raise TorchYardError(f"{root.name} was removed", "open the page of its job again", FAILED)
    return found[:MAX_FILES], len(found[MAX_FILES:])


def _file(path: Path, root: Path) -> dict[str, Any]:
    kind = next((kind for kind, suffixes in KINDS if path.suffix.lower() in suffixes), "other")
    name = path.relative_to(root).as_posix()
    return {"path": name, "shown": clean(name), "bytes": path.stat().st_size, "kind": kind}
