"""Who may use the page in a cluster: users whose requests carry a bearer token that the API server knows.

An authenticating proxy in front of the page adds the token. A browser sends the proxy's cookie with requests of other
sites, too, so these are rejected by `Host` and `Sec-Fetch-Site`; the page has no cookie, and changes nothing.
"""

import re
from collections.abc import Collection

from aiohttp import web
from aiohttp.typedefs import Handler

from torchyard.ui.access import HEADERS, SITES
from torchyard.ui.served.users import User, Users, unauthorized

HEALTH = "/healthz"
USER = web.RequestKey("user", User)
MAX_TOKEN = 16 * 1024
"""Bytes; tokens of OpenID Connect with many groups have a few KiB."""
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")


class TokenAccess:
    """Rejects requests without a valid token, and those of other sites.

    Args:
        users: of the page.
        hosts: names under which a browser reaches it, without ports.
    """

    def __init__(self, users: Users, hosts: Collection[str]) -> None:
        self._users, self._hosts = users, frozenset(hosts)

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check a request, and add the headers that confine the page."""
        if request.path == HEALTH:  # the kubelet asks by the address of the pod
            return await handler(request)
        try:
            request[USER] = await self._checked(request)
            response = await handler(request)
        except web.HTTPException as error:
            error.headers.update(HEADERS)
            raise
        if not response.prepared:
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)  # files of the page may be kept
        return response

    async def _checked(self, request: web.Request) -> User:
        if host_of(request.headers.get("Host", "")) not in self._hosts:
            raise web.HTTPForbidden(text="The page does not answer to this host name: name it in page.hosts.")
        if request.headers.get("Sec-Fetch-Site", "") not in SITES and not _is_navigation(request):
            raise web.HTTPForbidden(text="Another site asks. Open the page itself.")
        if request.method != "GET" and request.headers.get("X-TorchYard") != "1":
            raise web.HTTPForbidden(text="Only the page itself may ask.")
        return await self._users.of(token_of(request.headers.get("Authorization", "")))


def _is_navigation(request: web.Request) -> bool:
    """Return whether a user follows a link to the page, from the login of the proxy for instance: it reads nothing."""
    return request.method == "GET" and request.path == "/" and request.headers.get("Sec-Fetch-Mode") == "navigate"


def host_of(header: str) -> str:
    """Return the name of a `Host` header in lower case, without its port (pure)."""
    name, colon, port = header.rpartition(":")
    return (name if colon and port.isdigit() else header).lower()


def token_of(header: str) -> str:
    """Return the token of an `Authorization` header, RFC 6750 (pure).

    Raises:
        HTTPUnauthorized: there is none.
    """
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer" or len(token) > MAX_TOKEN or not _TOKEN.fullmatch(token):
        raise unauthorized()
    return token
