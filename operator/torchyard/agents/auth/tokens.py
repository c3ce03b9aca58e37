"""Authentication of agents: projected service account tokens with our audience, confirmed by the API server.

A token names its pod, and the API server confirms it, by its signature or by a review. Nothing else that an agent says
about itself is trusted. Unverified claims can only be a reason to reject a token without a review.
"""

import asyncio
import base64
import binascii
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from msgspec import Struct, field

from torchyard.agents.auth.verdicts import Bounds, Verdict, Verdicts

AUDIENCE = "torchyard.dev"
REVIEW_PATH = "/apis/authentication.k8s.io/v1/tokenreviews"

BOUNDS = Bounds()
MAX_REVIEWS = 64

_POD_UID = "authentication.kubernetes.io/pod-uid"

Review = Callable[[str, str], Awaitable[bytes]]
"""(token, audience) -> body of the API server's answer to `review_document`. Raises if no answer came."""


_ACCOUNT = "system:serviceaccount:"


class Identity(Struct, frozen=True):
    """The identity of a pod that the API server has confirmed."""

    namespace: str
    pod_uid: str
    account: str
    """Name of its service account."""


class Pod(Struct, frozen=True):
    """The pod that a token is bound to."""

    uid: str


class Kubernetes(Struct, frozen=True):
    """Private claims of Kubernetes."""

    namespace: str = ""
    pod: Pod | None = None


class Claims(Struct, frozen=True):
    """The claims that are read; `exp` in unix seconds."""

    exp: float
    aud: str | list[str]
    kubernetes: Kubernetes = field(name="kubernetes.io")
    sub: str = ""

    @property
    def audiences(self) -> list[str]:
        """Return the audiences of the token."""
        return [self.aud] if isinstance(self.aud, str) else self.aud


def read(token: str) -> Claims | None:
    """Return the unverified claims of a token; None: it is not a projected token."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        text = base64.b64decode(parts[1] + "=" * (-len(parts[1]) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(text, type=Claims)
    except (msgspec.MsgspecError, binascii.Error, ValueError):
        return None


def bound_to(account: str, pod_uid: str) -> Identity | None:
    """Return the pod of a service account's token; None: it is of another account, or not bound to a pod.

    Args:
        account: `system:serviceaccount:NAMESPACE:NAME`.
        pod_uid: may be empty.
    """
    namespace, _, name = account.removeprefix(_ACCOUNT).partition(":")
    if not account.startswith(_ACCOUNT) or not (namespace and name and pod_uid):
        return None
    return Identity(namespace, pod_uid, name)


Vouch = Callable[[str, str], Awaitable[Identity | None]]
"""(token, audience) -> owner of the token by its signature; None: only the API server knows. Never raises."""


class Member(Protocol):
    """A live pod, with the claims that its token must have besides the pod's uid."""

    @property
    def namespace(self) -> str:
        """Of the pod."""
        ...

    @property
    def account(self) -> str:
        """Name of its service account."""
        ...


MemberOf = Callable[[str], Member | None]
"""Pod uid -> a live pod that the operator created for a job that exists; None: it is no such pod."""


@dataclass
class TokenCounters:
    """Counters of tokens since the start of the process."""

    vouched: int = 0
    reviews: int = 0
    review_errors: int = 0
    stale: int = 0
    strangers: int = 0


class Tokens:
    """Caches verified tokens, and verifies others.

    Args:
        review: posts a TokenReview.
        member_of: returns a job's pod.
        vouch: verifies a signature, tried first; None: only reviews.
        audience: that a token must have.
        clock: unix seconds, for the expiry of tokens.
    """

    def __init__(
        self,
        review: Review,
        member_of: MemberOf,
        *,
        vouch: Vouch | None = None,
        audience: str = AUDIENCE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.counters = TokenCounters()
        self._review, self._member_of, self._vouch, self._audience = review, member_of, vouch, audience
        self._clock = clock
        self._turns = asyncio.Semaphore(MAX_REVIEWS)
        self._verdicts = Verdicts(self._judge, clock, BOUNDS, self._accepted_stale)

    async def authenticate(self, token: str) -> str | None:
        """Return the uid of the pod that this token belongs to; None: not a pod of a job.

        Raises:
            Exception: the API server did not answer, and the token is not cached.
        """
        identity = await self._verdicts.of(token, self._worth_asking)
        if identity is None:
            return None
        member = self._member_of(identity.pod_uid)
        if member is None or (member.namespace, member.account) != (identity.namespace, identity.account):
            self.counters.strangers += 1
            return None
        return identity.pod_uid

    def _accepted_stale(self) -> None:
        self.counters.stale += 1

    def _worth_asking(self, token: str) -> bool:
        claims = read(token)
        if claims is None or self._audience not in claims.audiences or self._clock() >= claims.exp:
            return False
        pod = claims.kubernetes.pod
        if pod is None or self._member_of(pod.uid) is None:
            self.counters.strangers += 1
            return False
        return True

    async def _judge(self, token: str) -> Verdict[Identity]:
        identity = await self._vouch(token, self._audience) if self._vouch is not None else None
        if identity is not None:
            self.counters.vouched += 1
        else:
            identity = await self._by_review(token)
        claims = read(token)
        return Verdict(identity, claims.exp if claims is not None else self._clock())

    async def _by_review(self, token: str) -> Identity | None:
        async with self._turns:
            self.counters.reviews += 1
            try:
                return reviewed(await self._review(token, self._audience), self._audience)
            except Exception:
                self.counters.review_errors += 1
                raise


def review_document(token: str, audience: str = "") -> dict[str, Any]:
    """Return the TokenReview to post at `REVIEW_PATH`; without an audience, tokens of the API server are valid."""
    spec = {"token": token, **({"audiences": [audience]} if audience else {})}
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}


def reviewed(body: bytes, audience: str) -> Identity | None:
    """Return the identity in a TokenReview; None: invalid, another audience, or not bound to a pod.

    Raises:
        ValueError: the body is not a TokenReview.
    """
    try:
        status = msgspec.json.decode(body, type=_Answer).status
    except msgspec.MsgspecError as error:
        raise ValueError(f"The API server's answer is not a TokenReview: {error}.") from None
    # An API server without audiences confirms nothing that can be trusted here.
    if not status.authenticated or status.error or audience not in status.audiences:
        return None
    pod_uids = status.user.extra.get(_POD_UID, [])
    return bound_to(status.user.username, pod_uids[0] if len(pod_uids) == 1 else "")


class _User(Struct, frozen=True):
    username: str = ""
    extra: dict[str, list[str]] = field(default_factory=dict)


class _ReviewStatus(Struct, frozen=True):
    authenticated: bool = False
    audiences: list[str] = field(default_factory=list)
    error: str = ""
    user: _User = field(default_factory=_User)


class _Answer(Struct, frozen=True):
    status: _ReviewStatus
