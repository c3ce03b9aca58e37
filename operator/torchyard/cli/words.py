"""Figures and foreign text as a person reads them on a terminal."""

import re
import time

from torchyard.api.texts import ESCAPES

# C0 but tab, DEL, C1, and the marks that turn the direction of what follows.
CONTROLS = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def clean(line: str) -> str:
    """One line of foreign text without escape sequences and control characters.

    Of a line that was overwritten with carriage returns (a progress bar), what a terminal would show last.
    """
    line = line.rstrip("\r\n")
    if "\r" in line:
        line = next((part for part in reversed(line.split("\r")) if part.strip()), "")
    return CONTROLS.sub("", ESCAPES.sub("", line))


def span(seconds: float) -> str:
    """A length of time in at most two units: `45s`, `4m10s`, `3h12m`, `5d4h`."""
    whole = max(0, round(seconds))
    for size, unit, smaller, small_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size}{unit}{rest}{small_unit}" if rest else f"{whole // size}{unit}"
    return f"{whole}s"


def figure(value: float) -> str:
    """A number in at most four significant digits, thousands apart."""
    if value != value or value in {float("inf"), float("-inf")}:  # noqa: PLR0124  NaN is the one that differs from itself
        return str(value)
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    if 1e-3 <= abs(value) < 1e6:
        digits = max(0, 4 - len(str(int(abs(value)))))
        return f"{value:,.{digits}f}"
    return f"{value:.3g}"


def size(count: float) -> str:
    """Bytes in binary units: `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def clock(unix: float) -> str:
    """Local wall-clock time: `12:00:03`."""
    return time.strftime("%H:%M:%S", time.localtime(unix))


def clip(text: str, width: int) -> str:
    """`text` in at most `width` characters, its end marked when something is missing."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"
