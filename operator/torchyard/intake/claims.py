"""Claims of a projected service account token (Kubernetes: "Schema for service account private claims").

Unverified claims can only be a reason to reject a token; `signatures` and `tokens` verify it.
"""

import base64
import binascii

import msgspec
from msgspec import Struct, field

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
