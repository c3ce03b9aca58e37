"""A bounded cache of what the API server says about tokens, which is asked once for all concurrent requests."""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from msgspec import Struct

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Bounds(Struct, frozen=True, kw_only=True):
    """Limits of the cache; times in seconds."""

    good_seconds: float = 600.0
    """After which a valid token is verified again."""
    bad_seconds: float = 10.0
    """In which a rejected token is rejected without a question."""
    again_seconds: float = 10.0
    """Between two questions about a token that was valid, while the API server does not answer."""
    good: int = 20_000
    bad: int = 2_000
    queued: int = 20_000
    """Tokens that are being verified."""


class Verdict(Struct, Generic[T]):
    """What the API server said about one token.

    Attributes:
        value: whose it is; None: it is rejected.
        expires: when the token is invalid, in unix seconds.
        fresh_until: when it is verified again.
    """

    value: T | None
    expires: float
    fresh_until: float = 0.0


class Verdicts(Generic[T]):
    """Verifies tokens, and remembers the answers.

    Args:
        judge: verifies a token. Raises if no answer came.
        clock: unix seconds.
        bounds: of the cache.
        accepted_stale: called for each token that is accepted although it could not be verified again.
    """

    def __init__(
        self,
        judge: Callable[[str], Awaitable[Verdict[T]]],
        clock: Callable[[], float],
        bounds: Bounds,
        accepted_stale: Callable[[], None] = lambda: None,
    ) -> None:
        self._judge, self._clock, self._bounds, self._accepted_stale = judge, clock, bounds, accepted_stale
        self._good: OrderedDict[bytes, Verdict[T]] = OrderedDict()
        self._bad: OrderedDict[bytes, float] = OrderedDict()
        self._asked: dict[bytes, asyncio.Task[Verdict[T]]] = {}

    async def of(self, token: str, worth_asking: Callable[[str], bool]) -> T | None:
        """Return whose token it is; None: it is rejected.

        Args:
            token: bearer token.
            worth_asking: whether a token that is not cached can be valid at all.

        Raises:
            Exception: the API server did not answer, and the token is not cached.
        """
        digest = hashlib.sha256(token.encode("utf-8", "replace")).digest()
        known = self._good.get(digest)
        now = self._clock()
        if known is None or now >= known.fresh_until:
            if self._bad.get(digest, 0.0) > now or not worth_asking(token):
                return None
            known = await self._judged(digest, token, known)
        return known.value if self._clock() < known.expires else None

    async def _judged(self, digest: bytes, token: str, known: Verdict[T] | None) -> Verdict[T]:
        asked = self._asked.get(digest)
        if asked is None:
            if len(self._asked) >= self._bounds.queued:
                raise TimeoutError(f"{self._bounds.queued} tokens wait to be reviewed")
            asked = asyncio.create_task(self._ask(digest, token))
            self._asked[digest] = asked
            asked.add_done_callback(lambda _done: self._asked.pop(digest, None))
        try:
            # A caller that disconnects does not cancel the verification for others.
            return await asyncio.shield(asked)
        except Exception as error:
            if known is None or self._clock() >= known.expires:
                raise
            # It was valid and has not expired: training and monitoring continue while the API server is away.
            self._accepted_stale()
            _log.warning("a TokenReview failed; a token that was valid before is accepted for now: %s", error)
            known.fresh_until = min(known.expires, self._clock() + self._bounds.again_seconds)
            return known

    async def _ask(self, digest: bytes, token: str) -> Verdict[T]:
        verdict = await self._judge(token)
        now = self._clock()
        if verdict.value is None:
            self._good.pop(digest, None)
            _remember(self._bad, digest, now + self._bounds.bad_seconds, self._bounds.bad)
        else:
            verdict.fresh_until = min(now + self._bounds.good_seconds, verdict.expires)
            _remember(self._good, digest, verdict, self._bounds.good)
        return verdict


def _remember(of: OrderedDict[bytes, Any], digest: bytes, what: Any, most: int) -> None:
    of[digest] = what
    of.move_to_end(digest)
    if len(of) > most:
        of.popitem(last=False)
