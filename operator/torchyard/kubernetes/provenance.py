"""Which pods this operator created: a signature in each pod, by a key that every leader publishes in the Lease.

An owner reference, a label or a name proves nothing: a user who may create pods in any namespace can write all three. A
signature covers namespace, job uid, name, time and a nonce, so it is worth one pod: it is void in another namespace,
for another job or name, in a pod that was created much later, and in a second pod. Each request has its own: one that
was thought lost may still create a pod, which has to be recognized (docs/decisions/0025-provenance-of-pods.md).
"""

import base64
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from msgspec import Struct

MAX_KEYS = 256
MAX_LENGTH = 200
"""Characters of a signature; ours has 150 or fewer."""
MAX_USED = 65536
EARLY_SECONDS = 60.0  # how far the clock that we sign by may be ahead of the one that stamps the pod
LATE_SECONDS = 600.0  # how long a creation may wait for its turn


class Claim(Struct, frozen=True):
    """A pod and its claim of origin."""

    namespace: str
    job_uid: str
    name: str
    uid: str
    created: float
    signature: str


class Provenance:
    """Sign pods on creation and recognize them later, also those of former leaders.

    Args:
        clock: unix seconds of the API server.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._private = Ed25519PrivateKey.generate()
        self.public_key = text_of(self._private.public_key().public_bytes_raw())
        """The public key by which other processes verify our signatures."""
        self._keys: dict[str, Ed25519PublicKey] = {}
        self._accepted: dict[str, bool] = {}  # by pod uid
        self._used: OrderedDict[str, str] = OrderedDict()  # signature -> uid of the pod that it was spent on
        self.trust((self.public_key,))

    def trust(self, public_keys: Iterable[str]) -> None:
        """Accept signatures by these keys, too; invalid keys are ignored."""
        added = False
        for text in public_keys:
            if text not in self._keys and (key := key_from(text)) is not None:
                self._keys[text] = key
                added = True
        if added:
            self._accepted = {uid: True for uid, valid in self._accepted.items() if valid}

    def sign(self, namespace: str, job_uid: str, name: str) -> str:
        """Return the signature for one request that creates a pod now."""
        issued = f"{self._clock():.0f}-{secrets.token_hex(3)}"
        signature = self._private.sign(_payload(namespace, job_uid, name, issued))
        return f"{self.public_key}.{issued}.{text_of(signature)}"

    def created(self, uid: str, signature: str) -> None:
        """Note the uid from the answer to our own creation, on which this signature is spent."""
        self._accepted[uid] = True
        self._spend(signature, uid)

    def verifies(self, uid: str, claim_of: Callable[[], Claim]) -> bool:
        """Return whether the operator created the pod of this uid; `claim_of` is called if it was not checked yet."""
        accepted = self._accepted.get(uid)
        if accepted is None:
            claim = claim_of()
            accepted = self._accepted[uid] = self._is_signed(claim) and self._is_first(claim)
        return accepted

    def forget(self, uid: str) -> None:
        """Drop a pod that is gone; its signature stays spent."""
        self._accepted.pop(uid, None)

    def _is_signed(self, claim: Claim) -> bool:
        public_key, _, rest = claim.signature.partition(".")
        issued, _, signature = rest.partition(".")
        seconds, _, _nonce = issued.partition("-")  # former releases signed without a nonce
        key = self._keys.get(public_key)
        if key is None or not (seconds.isascii() and seconds.isdigit()):
            return False
        if not -EARLY_SECONDS <= claim.created - int(seconds) <= LATE_SECONDS:
            return False
        try:
            key.verify(raw_of(signature), _payload(claim.namespace, claim.job_uid, claim.name, issued))
        except (InvalidSignature, ValueError):
            return False
        return True

    def _is_first(self, claim: Claim) -> bool:
        """Return whether no other pod was recognized by this signature: annotations can be copied."""
        return self._spend(claim.signature, claim.uid) == claim.uid

    def _spend(self, signature: str, uid: str) -> str:
        """Return the uid of the pod on which this signature is spent: this one, if it was not spent before."""
        spent_on = self._used.setdefault(signature, uid)
        if len(self._used) > MAX_USED:
            self._used.popitem(last=False)
        return spent_on


def _payload(namespace: str, job_uid: str, name: str, issued: str) -> bytes:
    return f"torchyard.dev/pod\n{namespace}\n{job_uid}\n{name}\n{issued}".encode()


def key_from(text: str) -> Ed25519PublicKey | None:
    """Return a public key from its text; None if the text is not a key."""
    try:
        return Ed25519PublicKey.from_public_bytes(raw_of(text))
    except ValueError:
        return None


def text_of(raw: bytes) -> str:
    """Return bytes as base64url without padding."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def raw_of(text: str) -> bytes:
    """Return the bytes of a base64url text without padding.

    Raises:
        ValueError: it is not base64url.
    """
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
