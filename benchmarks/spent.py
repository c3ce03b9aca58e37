"""Processor time of a command with everything that it starts, also what outlives it."""

import ctypes
import os
import resource
import subprocess
import time
from typing import NamedTuple

PR_SET_CHILD_SUBREAPER = 36


class Spent(NamedTuple):
    """Seconds of the clock and of a processor."""

    wall: float
    processor: float


def spent(argv: list[str]) -> Spent:
    """Run a command until it and all of its descendants have ended; return the time that they took.

    Agents and templates are no children of the command that starts them, or outlive it: this process adopts them, so
    that their time is counted, too. The clock stops when the command itself ends.

    Raises:
        SystemExit: the command fails; with what it printed.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    wall = time.monotonic() - begun
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)}:\n{done.stderr}")
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Spent(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
