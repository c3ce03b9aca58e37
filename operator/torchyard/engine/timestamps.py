"""Times of the status as unix seconds. An unreadable time counts as absent, so that the plan is total."""

import math

from torchyard.api import times


def moment(text: str | None) -> float | None:
    """Return the unix seconds of an RFC 3339 time; None if it is absent or unreadable."""
    if not text:
        return None
    try:
        value = times.unix(text)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def since(text: str | None, otherwise: float) -> float:
    """Return the unix seconds of a time, or `otherwise` if it is absent."""
    value = moment(text)
    return otherwise if value is None else value
