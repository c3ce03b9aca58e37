"""Times on the wire: RFC 3339 in UTC with whole seconds, `2026-11-21T06:30:00Z`."""

import math
from datetime import UTC, datetime


def rfc3339(unix: float) -> str:
    """Unix seconds as text, rounded down to the second."""
    return datetime.fromtimestamp(int(unix // 1), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def unix(text: str) -> float:
    """Unix seconds of an RFC 3339 time; fractions and offsets are understood.

    Raises:
        ValueError: the text is not a time with an offset.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; write it like 2026-11-21T06:30:00Z")
    return moment.timestamp()


def moment(text: str | None) -> float | None:
    """Return the unix seconds of an RFC 3339 time; None if it is absent or unreadable."""
    if not text:
        return None
    try:
        value = unix(text)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def since(text: str | None, otherwise: float) -> float:
    """Return the unix seconds of a time, or `otherwise` if it is absent."""
    value = moment(text)
    return otherwise if value is None else value
