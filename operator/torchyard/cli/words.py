"""Foreign text, sizes and times as a person reads them on a terminal."""

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
