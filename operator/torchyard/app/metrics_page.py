"""`GET /metrics` at the port of the intake: over TLS, bounded like it, and only for those who may read metrics."""

import math
import time
from collections.abc import Awaitable, Callable

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_1_0_0

from torchyard.agents.auth.readers import PAGE
from torchyard.agents.http.admission import Buckets
from torchyard.agents.http.connection import Handle, Request, Response
from torchyard.agents.server import MAX_TOKEN_CHARACTERS

REFUSALS_PER_SECOND, REFUSALS_BURST = 1.0, 20.0
"""Rejected tokens of one address; each can cost the API server a review."""


class MetricsPage:
    """Answers `GET /metrics`, and passes on other requests.

    Args:
        page: returns the metrics in the text format of Prometheus.
        may_read: whether the owner of a bearer token may read them; None: the token is invalid. May raise.
        otherwise: handles requests for other paths.
    """

    def __init__(
        self,
        page: Callable[[], Awaitable[bytes]],
        may_read: Callable[[str], Awaitable[bool | None]],
        otherwise: Handle,
    ) -> None:
        self._page, self._may_read, self._otherwise = page, may_read, otherwise
        self._refusals = Buckets(REFUSALS_PER_SECOND, REFUSALS_BURST, time.monotonic)

    async def handle(self, request: Request) -> Response:
        """Answer one request."""
        if request.path.partition("?")[0] != PAGE:
            return await self._otherwise(request)
        if request.method != "GET":
            return _error(405, f"The only method here is `GET {PAGE}`.")
        scheme, _, token = request.authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN_CHARACTERS:
            return _error(401, "`Authorization: Bearer <token>` is missing.")
        if wait := self._refusals.wait(request.peer):
            sentence = f"Too many tokens from {request.peer} were rejected."
            return Response(429, {"error": sentence}, retry_after=math.ceil(wait))
        try:
            may_read = await self._may_read(token)
        except Exception as error:  # noqa: BLE001 -- whatever the API server answered, the caller must try again later
            return Response(503, {"error": f"The token could not be checked: {type(error).__name__}."}, retry_after=2)
        if not may_read:
            self._refusals.take(request.peer)
            if may_read is None:
                return _error(401, "The token is not valid for the API server of this cluster.")
            return _error(403, f"The account of the token may not `get` {PAGE}.")
        request.proven()
        return Response(200, await self._page(), content=CONTENT_TYPE_PLAIN_1_0_0)


def _error(status: int, sentence: str) -> Response:
    return Response(status, {"error": sentence}, close=True)
