"""Handles `POST /v1/sync`: authentication, rate limits, state, answer."""

import math
import time
from collections.abc import Awaitable, Callable

from torchyard.agents.http.admission import Limits
from torchyard.agents.http.connection import Request, Response
from torchyard.agents.http.slots import Buckets
from torchyard.agents.protocol import decode, without_figures
from torchyard.agents.registry import AgentRegistry, SupersededError

Authenticate = Callable[[str], Awaitable[str | None]]
"""Bearer token -> pod uid, None: rejected. May raise: the agent is then asked to retry later."""

PATH = "/v1/sync"
MAX_TOKEN_CHARACTERS = 16 * 1024
MAX_WELCOME = 50_000

ELSEWHERE = Response(
    503, {"error": "This operator does not lead now: ask again, another one answers."}, retry_after=1, close=True
)


class Sync:
    """Answers requests from one registry.

    Args:
        registry: state and commands of the agents.
        authenticate: returns the pod of a token.
        serving: whether this process leads and knows its pods; otherwise agents are redirected.
        limits: of pods and addresses.
    """

    def __init__(
        self, registry: AgentRegistry, authenticate: Authenticate, serving: Callable[[], bool], limits: Limits
    ) -> None:
        self._registry, self._authenticate, self._serving = registry, authenticate, serving
        self._syncs = Buckets(limits.syncs_per_second, limits.syncs_burst, time.monotonic)
        self._welcome: set[int] = set()
        self._refusals = Buckets(limits.refusals_per_second, limits.refusals_burst, time.monotonic)

    async def handle(self, request: Request) -> Response:
        """Answer one request; a long poll waits until there is a new command."""
        if request.path != PATH or request.method != "POST":
            return _error(405 if request.path == PATH else 404, f"The only thing to ask for here is `POST {PATH}`.")
        if not self._serving():
            self._registry.counters.elsewhere += 1
            return ELSEWHERE
        pod_uid = await self._who(request)
        if isinstance(pod_uid, Response):
            return pod_uid
        request.proven()
        if wait := self._syncs.take(pod_uid):
            return self._limited("This pod asks too often.", wait)
        try:
            message = decode(request.body)
        except ValueError as error:
            self._registry.counters.malformed += 1
            return _error(400, str(error))
        del request  # token and figures are not kept while the request waits
        try:
            self._registry.record(pod_uid, message)
            message = without_figures(message)
            await self._registry.long_poll(pod_uid, message)
        except SupersededError:
            return _error(409, "superseded")
        return Response(200, self._registry.answer(pod_uid))

    async def _who(self, request: Request) -> str | Response:
        """Return the pod of the request, or the response that rejects it."""
        counters = self._registry.counters
        scheme, _, token = request.authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN_CHARACTERS:
            counters.refused += 1
            return _error(401, "`Authorization: Bearer <token>` is missing.")
        # Known pods are not limited by others behind the same address.
        if hash(token) not in self._welcome and (wait := self._refusals.wait(request.peer)):
            return self._limited(f"Too many tokens from {request.peer} were refused.", wait)
        try:
            pod_uid = await self._authenticate(token)
        except Exception as error:  # noqa: BLE001 - whatever the authenticator met, the agent must try again later
            counters.unavailable += 1
            return Response(503, {"error": f"The token could not be checked: {type(error).__name__}."}, retry_after=2)
        if pod_uid is None:
            self._refusals.take(request.peer)
            counters.refused += 1
            return _error(403, "The token is not the one of a pod that this operator runs.")
        if len(self._welcome) >= MAX_WELCOME:
            self._welcome.clear()
        self._welcome.add(hash(token))
        return pod_uid

    def _limited(self, sentence: str, wait: float) -> Response:
        self._registry.counters.limited += 1
        return Response(429, {"error": sentence}, retry_after=math.ceil(wait))


def _error(status: int, sentence: str) -> Response:
    return Response(status, {"error": sentence})
