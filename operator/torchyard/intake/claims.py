"""What a projected service-account token says of itself (Kubernetes: "Schema for service account private claims").

Unverified it can only be a reason to refuse a token; what to believe, `signatures` and `tokens` find out.
"""

import base64
import binascii

import msgspec
from msgspec import Struct, field

_ACCOUNT = "system:serviceaccount:"


class Identity(Struct, frozen=True):
    """A pod, as the API server knows it."""

    namespace: str
    pod_uid: str
    account: str
    """Name of its service account."""


class Pod(Struct, frozen=True):
    """The object a token is bound to."""

    uid: str


class Kubernetes(Struct, frozen=True):
    """Private claims."""

    namespace: str = ""
    pod: Pod | None = None


class Claims(Struct, frozen=True):
    """The claims we read; `exp` in unix seconds."""

    exp: float
    aud: str | list[str]
    kubernetes: Kubernetes = field(name="kubernetes.io")
    sub: str = ""

    @property
    def audiences(self) -> list[str]:
        """Whom the token is meant for."""
        return [self.aud] if isinstance(self.aud, str) else self.aud


def read(token: str) -> Claims | None:
    """The claims of a token, unverified; None: it is none that a kubelet projects."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        text = base64.b64decode(parts[1] + "=" * (-len(parts[1]) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(text, type=Claims)
    except (msgspec.MsgspecError, binascii.Error, ValueError):
        return None


def bound_to(account: str, pod_uid: str) -> Identity | None:
    """The pod of a service account's token; None: it is of no service account, or bound to no pod.

    Args:
        account: `system:serviceaccount:NAMESPACE:NAME`.
        pod_uid: may be empty.
    """
    namespace, _, name = account.removeprefix(_ACCOUNT).partition(":")
    if not account.startswith(_ACCOUNT) or not (namespace and name and pod_uid):
        return None
    return Identity(namespace, pod_uid, name)
