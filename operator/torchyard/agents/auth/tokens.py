"""Authentication of agents: projected service account tokens with our audience, confirmed by the API server.

A token names its pod, and the API server confirms it, by its signature or by a review. Nothing else that an agent says
about itself is trusted. Unverified claims can only be a reason to reject a token without a review.
"""

import asyncio
import base64
import binascii
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import Struct, field

T = TypeVar("T")

AUDIENCE = "torchyard.dev"
REVIEW_PATH = "/apis/authentication.k8s.io/v1/tokenreviews"

MAX_REVIEWS = 64

_POD_UID = "authentication.kubernetes.io/pod-uid"

_log = logging.getLogger(__name__)

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


BOUNDS = Bounds()


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
