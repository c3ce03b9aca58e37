"""Authorization of those who read /metrics: TokenReview, then SubjectAccessReview, as kube-rbac-proxy does it."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Struct, field

from torchyard.agents.auth.tokens import Bounds, Verdict, Verdicts, read

ACCESS_PATH = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
PAGE = "/metrics"
BOUNDS = Bounds(good_seconds=60.0, good=256, bad=1024, queued=64)
DENIED_SECONDS = 10.0
"""After which an account without the right is looked up again: the right may have been granted."""
MAX_REVIEWS = 4

_log = logging.getLogger(__name__)


class _User(Struct, frozen=True):
    username: str = ""
    uid: str = ""
    groups: list[str] = field(default_factory=list)
    extra: dict[str, list[str]] = field(default_factory=dict)


class _Authentication(Struct, frozen=True):
    authenticated: bool = False
    error: str = ""
    user: _User = field(default_factory=_User)


class _Access(Struct, frozen=True):
    allowed: bool = False
    denied: bool = False


class _Authenticated(Struct, frozen=True):
    status: _Authentication


class _Authorized(Struct, frozen=True):
    status: _Access


class Readers:
    """Decides which tokens may read /metrics.

    Args:
        review: posts a TokenReview for the audience of the API server; returns the body of its answer.
        access: posts a SubjectAccessReview; returns the body of its answer.
        clock: unix seconds.
    """

    def __init__(
        self,
        review: Callable[[str], Awaitable[bytes]],
        access: Callable[[dict[str, Any]], Awaitable[bytes]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._review, self._access, self._clock = review, access, clock
        self._turns = asyncio.Semaphore(MAX_REVIEWS)
        self._verdicts: Verdicts[bool] = Verdicts(self._judge, clock, BOUNDS)

    async def may_read(self, token: str) -> bool | None:
        """Return whether the owner of the token may read /metrics; None: the token is invalid.

        Raises:
            Exception: the API server did not answer, and the token is not cached.
        """
        return await self._verdicts.of(token, self._can_be_valid)

    def _can_be_valid(self, token: str) -> bool:
        claims = read(token)
        return claims is None or self._clock() < claims.exp

    async def _judge(self, token: str) -> Verdict[bool]:
        async with self._turns:
            user = _decoded(await self._review(token), _Authenticated).status
            if not user.authenticated or user.error:
                return Verdict(None, self._clock())
            access = _decoded(await self._access(access_document(user.user)), _Authorized).status
        now, claims = self._clock(), read(token)
        if not access.allowed or access.denied:
            _log.warning("%r may not read %s: bind the ClusterRole of its readers to it", user.user.username, PAGE)
            return Verdict(False, now + DENIED_SECONDS)
        return Verdict(True, claims.exp if claims is not None else now + BOUNDS.good_seconds)


def access_document(user: _User) -> dict[str, Any]:
    """Return the SubjectAccessReview to post at `ACCESS_PATH`: whether the user may `get` /metrics."""
    spec = {**msgspec.to_builtins(user), "nonResourceAttributes": {"path": PAGE, "verb": "get"}}
    spec["user"] = spec.pop("username")
    return {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}


def _decoded(body: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise ValueError(f"The API server's answer is not a review: {error}.") from None
