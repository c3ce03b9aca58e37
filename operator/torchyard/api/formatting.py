"""Figures, sizes, times and foreign text as people read them: in a message, a table, on a terminal."""

import math
import re
import time

# Escape sequences of terminals.
ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|[\]P^_X][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC, DCS and their like, up to their end
    r"|[ -/]*[0-~])"
)


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: `1 node`, `2 nodes`, `1,024 ranks`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def span(seconds: float) -> str:
    """Return a length of time in at most two units: `45s`, `4m10s`, `3h12m`, `5d4h`."""
    whole = max(0, round(seconds))
    for size, unit, smaller, small_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size}{unit}{rest}{small_unit}" if rest else f"{whole // size}{unit}"
    return f"{whole}s"


def figure(value: float) -> str:
    """Return a number in three or four significant digits, thousands apart."""
    if value != value or value in {float("inf"), float("-inf")}:  # noqa: PLR0124  NaN is the one that differs from itself
        return str(value)
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    if 1e-3 <= abs(value) < 0.1:
        return f"{value:#.3g}"
    if 0.1 <= abs(value) < 1e6:
        digits = max(0, 4 - len(str(int(abs(value)))))
        return f"{value:,.{digits}f}"
    return f"{value:.3g}"


# C0 but tab, DEL, C1, and the marks that turn the direction of what follows.
CONTROLS = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


_OWN_COMMAND = re.compile(r"`torchyard (explain|logs|resume|stacks|status|sweep show)`")
_KUBECTL = re.compile(r"`kubectl (describe pod|describe pvc|logs)( [^`]*)?`")


def clean(line: str) -> str:
    """Return one line of foreign text without escape sequences and control characters.

    Of a line that was overwritten with carriage returns (a progress bar), what a terminal would show last.
    """
    line = line.rstrip("\r\n")
    if "\r" in line:
        line = next((part for part in reversed(line.split("\r")) if part.strip()), "")
    return CONTROLS.sub("", ESCAPES.sub("", line))


def addressed(text: str, name: str, flags: str = "") -> str:
    """Return a sentence whose commands can be typed as they stand: with the name of the job and where it is.

    Args:
        text: sentence of a reason, in which commands name no job.
        name: of the job.
        flags: of a job on a cluster, as ` -n team`; empty: it is on this machine.
    """
    text = _OWN_COMMAND.sub(lambda found: f"`torchyard {found[1]} {name}{flags}`", text)
    return _KUBECTL.sub(lambda found: f"`kubectl {found[1]}{flags}{found[2] or ''}`", text)


def size(count: float) -> str:
    """Return bytes in binary units: `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{three_digits(count)} {unit}"
        count /= 1024
    return f"{three_digits(count)} TiB"


def rate(per_second: float, unit: str) -> str:
    """Things a second in two or three digits: `6.9k samples/s`, `0.35 steps/s`."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(per_second) >= factor * 0.9995:
            return f"{three_digits(per_second / factor)}{prefix} {unit}/s"
    return f"{three_digits(per_second)} {unit}/s"


def three_digits(value: float) -> str:
    """Return a number in three significant digits, without trailing zeros: `46.2`, `0.35`, `120`."""
    if value == 0 or value != value or abs(value) == float("inf"):  # noqa: PLR0124 - NaN
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def measure(name: str, value: float) -> str:
    """Return a metric in the unit that its name ends with: `477 MiB` of memoryPeakBytes, `-13.3 %` of gapPercent."""
    if name.endswith("Bytes"):
        return size(value)
    if name.endswith("Percent"):
        return f"{three_digits(value)} %"
    if name.endswith("Share"):
        return f"{three_digits(100 * value)} %"
    if name.endswith("Seconds"):
        return f"{three_digits(value)} s"
    return figure(value)


def clock(unix: float) -> str:
    """Local wall-clock time: `12:00:03`."""
    return time.strftime("%H:%M:%S", time.localtime(unix))


def clip(text: str, width: int) -> str:
    """`text` in at most `width` characters, its end marked when something is missing."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"
