"""Errors of the API server by their meaning. Those that may pass by themselves are `reconcile.ports.Unavailable`."""

from typing import Any

import msgspec
from msgspec import Struct, field

from torchyard.reconcile import ports
from torchyard.reconcile.ports import Unavailable

MAX_MESSAGE = 2000


class Cause(Struct, frozen=True):
    """One cause that the API server names."""

    reason: str = ""
    message: str = ""
    field: str = ""


class Details(Struct, frozen=True, rename="camel"):
    """The object and the causes of an error."""

    name: str = ""
    kind: str = ""
    causes: list[Cause] = field(default_factory=list)
    retry_after_seconds: int = 0


class _Status(Struct, frozen=True):
    """`meta/v1.Status`, the body of every error."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: Details | None = None


class NotFound(Exception):  # noqa: N818 -- the API's own word
    """404: the object, its namespace or its resource does not exist; `details.kind` names which."""

    def __init__(self, message: str, details: Details) -> None:
        super().__init__(message)
        self.details = details


class Gone(Exception):  # noqa: N818
    """410: the resourceVersion is too old; list again."""


class Conflict(ports.Conflict):
    """409: the object is not the one of the precondition; read again, then decide."""


class AlreadyExists(Conflict):
    """409: there is an object of that name; read it to find its owner."""


class Rejected(Exception):  # noqa: N818
    """The request itself is rejected: invalid, forbidden, over quota. Retrying helps only after a change.

    Attributes:
        code: HTTP status, 400 to 499.
        reason: the server's word: Invalid, Forbidden, BadRequest ...
        message: the server's sentence.
        details: what it is about, with the fields that are at fault.
    """

    def __init__(self, code: int, reason: str, message: str, details: Details) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code, self.reason, self.message, self.details = code, reason, message, details


class Fenced(Unavailable):
    """This process does not certainly hold the lease; the write was not sent."""


class Unauthorized(Unavailable):
    """401, after credentials were loaded again: the server does not know the user."""


class TooLarge(Unavailable):
    """The answer is larger than was asked for; it was not read to its end."""


Refusal = NotFound | Gone | Conflict | Rejected | Unavailable


def refusal(code: int, body: bytes, *, what: str, retry_after: str | None = None) -> Refusal:
    """Return the exception that an answer stands for.

    Args:
        code: HTTP status, or the code of a watch's ERROR event.
        body: `meta/v1.Status` as JSON; anything else is shown as text.
        what: verb and path, for the message.
        retry_after: value of the header of that name.
    """
    status = _status(body)
    message = (status.message or status.reason or f"HTTP {code}")[:MAX_MESSAGE]
    details = status.details or Details()
    if code == 404:
        return NotFound(message, details)
    if code == 410:
        return Gone(message)
    if code == 409 and status.reason == "AlreadyExists":
        return AlreadyExists(message)
    if code == 409:
        return Conflict(message)
    if 400 <= code < 500 and code not in {401, 408, 429}:
        return Rejected(code, status.reason, message, details)
    kind = Unauthorized if code == 401 else Unavailable
    return kind(f"{what}: {code} {message}", _seconds(retry_after, details.retry_after_seconds))


def _status(body: bytes) -> _Status:
    try:
        return msgspec.json.decode(body, type=_Status)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _Status(message=body[:MAX_MESSAGE].decode(errors="replace").strip())


def _seconds(header: Any, details: int) -> float | None:
    try:
        return max(0.0, float(header))
    except (TypeError, ValueError):
        return float(details) if details > 0 else None
