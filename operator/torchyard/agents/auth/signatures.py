"""Verification of tokens with the API server's public keys, so that a new gang or a new leader costs no requests.

A signature only confirms a token. A token that cannot be confirmed here (no keys, an unknown key, another issuer, any
other doubt) is reviewed by the API server (docs/decisions/0019-token-signatures.md).
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

import jwt
import msgspec
from msgspec import Struct

from torchyard.agents.auth.tokens import Claims, Identity, bound_to, read
from torchyard.reconcile.ports import Unavailable

KEYS_PATH = "/openid/v1/jwks"
ISSUER_PATH = "/.well-known/openid-configuration"
MEDIA_TYPES = "application/json, application/jwk-set+json"  # of these two documents; keys are not served as plain JSON

# Algorithms that an API server signs with (kube-apiserver: --service-account-signing-key-file).
ALGORITHMS = ("RS256", "RS384", "RS512", "ES256", "ES384", "ES512")
KEYS_SECONDS = 300.0
AGAIN_SECONDS = 30.0
# Non-text and nested brackets raise other errors in the parser.
NO_TOKEN = (jwt.PyJWTError, ValueError, RecursionError)

_log = logging.getLogger(__name__)

Get = Callable[[str], Awaitable[bytes]]
"""Path -> document of the API server. Raises ValueError if it gives none to the operator; Unavailable: no answer."""


class _Keys(Struct, frozen=True):
    issuer: str
    by_id: dict[str, jwt.PyJWK]


NO_KEYS = _Keys("", {})


class Signatures:
    """Verifies tokens with the keys that the API server publishes.

    Args:
        get: requests a document from the API server.
        clock: seconds; only differences are used.
    """

    def __init__(self, get: Get, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._get, self._clock = get, clock
        self._keys = NO_KEYS
        self._read_at = self._tried_at = float("-inf")
        self._reading = asyncio.Lock()

    async def vouch(self, token: str, audience: str) -> Identity | None:
        """Return the identity of a token, expired or not; None: it cannot be confirmed here."""
        try:
            key_id = jwt.get_unverified_header(token).get("kid", "")
        except NO_TOKEN:
            return None
        await self._follow(key_id)
        key = self._keys.by_id.get(key_id)
        claims = read(token)
        if key is None or claims is None or not _signed(token, key, self._keys.issuer, audience):
            return None
        return _identity(claims)

    async def _follow(self, key_id: str) -> None:
        """Read the keys again if they are old or lack this one; concurrent callers share one request."""
        if not self._due(key_id):
            return
        async with self._reading:
            if not self._due(key_id):
                return
            try:
                self._keys = published(await self._get(ISSUER_PATH), await self._get(KEYS_PATH))
            except ValueError as error:
                self._keys = NO_KEYS
                _log.info("the API server does not publish its keys, so each new token needs a TokenReview: %s", error)
            except Unavailable as error:
                # Confirmed tokens stay valid: they expire within an hour anyway.
                _log.info("the API server's public keys cannot be read at the moment: %s", error)
            else:
                self._read_at = self._clock()
            finally:
                self._tried_at = self._clock()  # not before: waiting callers must not continue without keys

    def _due(self, key_id: str) -> bool:
        now = self._clock()
        old = now >= self._read_at + KEYS_SECONDS
        return (old or key_id not in self._keys.by_id) and now >= self._tried_at + AGAIN_SECONDS


def published(configuration: bytes, key_set: bytes) -> _Keys:
    """Return the issuer and its keys by id from the two OpenID Connect documents of an API server.

    Raises:
        ValueError: the documents have another form.
    """
    try:
        issuer = msgspec.json.decode(configuration, type=_Configuration).issuer
        documents = msgspec.json.decode(key_set, type=_KeySet).keys
    except msgspec.MsgspecError as error:
        raise ValueError(f"they are not as OpenID Connect has them: {error}") from None
    by_id = {}
    for document in documents:
        try:
            key = jwt.PyJWK(document)
        except jwt.PyJWTError as error:
            _log.info("ignoring a public key of the API server: %s", error)
            continue
        if key.algorithm_name in ALGORITHMS and key.key_id:
            by_id[key.key_id] = key
    return _Keys(issuer, by_id)


def _signed(token: str, key: jwt.PyJWK, issuer: str, audience: str) -> bool:
    """Return whether this key, with its own algorithm, signed the token; `Tokens` checks audience and expiry."""
    options: jwt.types.Options = {"require": ["exp", "iss", "aud", "sub"], "verify_exp": False}
    try:
        jwt.decode(token, key, algorithms=[key.algorithm_name], audience=audience, issuer=issuer, options=options)
    except NO_TOKEN:
        return False
    return True


def _identity(claims: Claims) -> Identity | None:
    pod = claims.kubernetes.pod
    found = bound_to(claims.sub, pod.uid if pod is not None else "")
    return found if found is not None and found.namespace == claims.kubernetes.namespace else None


class _Configuration(Struct, frozen=True):
    issuer: str


class _KeySet(Struct, frozen=True):
    keys: list[dict[str, str]]
