"""Durations as the resource writes them: `90s`, `5m`, `2h`, `1h30m`."""

import re

_DURATION = re.compile(r"(?:([0-9]{1,5})h)?(?:([0-9]{1,7})m)?(?:([0-9]{1,9})s)?")


def seconds(text: str) -> float:
    """Seconds of a duration.

    Raises:
        ValueError: the text is not a duration; the message shows the form.
    """
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        raise ValueError(f"{text!r} is not a duration; write it like 90s, 5m or 1h30m")
    hours, minutes, rest = (int(part or 0) for part in match.groups())
    return float(hours * 3600 + minutes * 60 + rest)


def text(seconds: float) -> str:
    """Shortest duration of that many seconds, rounded to whole ones: 5400 -> `1h30m`, 0 -> `0s`."""
    whole = max(0, round(seconds))
    parts = ((whole // 3600, "h"), (whole % 3600 // 60, "m"), (whole % 60, "s"))
    return "".join(f"{count}{unit}" for count, unit in parts if count) or "0s"
