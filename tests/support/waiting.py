"""Wait for a condition, with a deadline."""

import time
from pathlib import Path

DEADLINE = 1800.0
"""Seconds after which a wait counts as a hang: beside all others, a test of 15 s of a processor has taken 11 min."""


def until(look, seconds=DEADLINE):
    """Return the first true value of `look`; an error on the way counts as not yet."""
    deadline = time.monotonic() + seconds
    error = None
    while time.monotonic() < deadline:
        try:
            found = look()
        except (OSError, ValueError, KeyError) as problem:
            error = problem
        else:
            if found:
                return found
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s: {error or 'never true'}")


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
