"""Figures and texts as people read them: in a table of `kubectl`, in a message, on a terminal."""

import re

# What is not text in a text that is meant for a terminal.
ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|[\]P^_X][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC, DCS and their like, up to their end
    r"|[ -/]*[0-~])"
)


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: `1 node`, `2 nodes`, `1,024 ranks`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


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
