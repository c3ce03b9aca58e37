"""Who may use the page: one browser of this user, which has exchanged the token of a link for a cookie.

Other programs and sites reach a port of this machine, too. Requests are therefore refused by `Host` (a foreign name
that resolves to this machine), by `Sec-Fetch-Site` (another site in the same browser), and without the cookie.
"""

import contextlib
import hmac
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler

from torchyard.api.files import read_regular
from torchyard.local.run import home_folder, write_atomic
from torchyard.ui.files import PREFIX

HOSTS = frozenset({"127.0.0.1", "localhost"})
SITES = frozenset({"", "none", "same-origin"})
SECRET_BYTES = 32
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class Access:
    """The token of the next link, and the cookie that it is exchanged for.

    The cookie is the secret in `ui.secret` of $TORCHYARD_HOME: open pages work on after a restart of the server.

    Args:
        port: of the server.
        on_link: called with the path of each new link; each works once.
    """

    def __init__(self, port: int, on_link: Callable[[str], None]) -> None:
        self.cookie = f"torchyard-{port}"
        self._hosts = {f"{host}:{port}" for host in HOSTS}
        self._secret = _secret(home_folder() / "ui.secret")
        self._on_link = on_link
        self._token = ""

    def new_link(self) -> None:
        """Make a link; the one before does not work any more."""
        self._token = secrets.token_urlsafe(SECRET_BYTES)
        self._on_link(f"/?t={self._token}")

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse what does not come from the page, and add the headers that confine it."""
        try:
            response = await self._checked(request, handler)
        except web.HTTPException as error:
            error.headers.update(HEADERS)
            raise
        if not response.prepared:
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)  # files of jobs are confined further
        return response

    async def _checked(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.headers.get("Host", "") not in self._hosts:
            raise web.HTTPForbidden(text="This server answers to 127.0.0.1 and localhost only.")
        if request.path.startswith(PREFIX) and request.method == "GET":  # by the secret in the path: see `files`
            return await handler(request)
        if request.headers.get("Sec-Fetch-Site", "") not in SITES:
            raise web.HTTPForbidden(text="Another site asks. Open the link that `torchyard ui` prints.")
        if request.method != "GET" and request.headers.get("X-TorchYard") != "1":
            raise web.HTTPForbidden(text="Only the page itself may change something.")
        token = request.query.get("t")
        if request.path == "/" and token is not None:
            return self._exchanged(request, token)
        if not _equal(request.cookies.get(self.cookie, ""), self._secret):
            raise web.HTTPUnauthorized(text="Open the link that `torchyard ui` prints; each works once.")
        return await handler(request)

    def _exchanged(self, request: web.Request, token: str) -> web.Response:
        known = _equal(request.cookies.get(self.cookie, ""), self._secret)
        if not known and not (self._token and _equal(token, self._token)):
            raise web.HTTPUnauthorized(text="This link was used. `torchyard ui` has printed another one.")
        answer = web.Response(status=303, headers={"Location": "/"})
        answer.set_cookie(self.cookie, self._secret, httponly=True, samesite="Strict", path="/")
        if not known:
            self.new_link()
        return answer


def _equal(left: str, right: str) -> bool:
    return hmac.compare_digest(left.encode(), right.encode())


def _secret(path: Path) -> str:
    """Return the secret of this user, which is created with the first page."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if path.stat().st_uid == os.getuid() and path.stat().st_mode & 0o077 == 0:
            text = read_regular(path, 1024).decode("ascii")
            if len(text) >= SECRET_BYTES:
                return text
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = secrets.token_urlsafe(SECRET_BYTES)
    write_atomic(path, made.encode())
    return made
