"""Times of the status as numbers. What cannot be read counts as absent: the plan is total."""

import math

from torchyard.api import times


def moment(text: str | None) -> float | None:
    """Unix seconds of an RFC 3339 time of the status."""
    if not text:
        return None
    try:
        value = times.unix(text)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def since(text: str | None, otherwise: float) -> float:
    """As `moment`, with a value for what is absent."""
    value = moment(text)
    return otherwise if value is None else value
