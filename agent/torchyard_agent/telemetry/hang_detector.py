"""Find ranks that make no progress: how long, where, and which is the cause. Pure: fed with reports, stacks and time.

Of a user's program only its steps are known. It may evaluate for an hour between two of them, so a rank is ended only
if the job names a limit (`TORCHYARD_STALL_SECONDS`); without one, the operator gets a report. Built-in workloads have
their own watchdog, which knows what they are doing.
"""

from __future__ import annotations

import math
import re
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

# A longer gap between two looks means that the agent itself was stopped with its pod: it counts for no rank.
LONGEST_GAP_SECONDS = 2.0
# Ranks blocked in a collective look hung, too: the culprit has this long to be identified first.
MEETING_SECONDS = 10.0
# What is worth telling: so many times what it took before, and at least this long; longer where the program itself
# says that it does something else than steps.
QUIET_TIMES, QUIET_SECONDS, QUIET_SECONDS_ELSEWHERE = 20.0, 600.0, 1800.0
_BEFORE_STEPS = frozenset({"init", "compile", "restore"})
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$', re.MULTILINE)
# Collectives, whose waits are measured, and the backward pass that reduces gradients.
_MEETING_PLACES = ("/torch/distributed/", "/torch/autograd/", "/torchyard_agent/telemetry/waits.py")
# Built-in trainers are installed like a library, and are the program all the same.
_LIBRARIES = re.compile(
    r"/(site|dist)-packages/(?!torchyard_trainers/)|/lib/python3\.\d+/(?!site-|dist-)|^<frozen |/torchyard_agent/"
)


class HangDetector:
    """Time without progress of each local rank of one round.

    Args:
        seconds: longest time without progress of a rank that has made a step; None: for ever.
    """

    def __init__(self, seconds: Optional[float]) -> None:
        self.seconds = seconds
        self._patience = seconds or 0.0
        self._looked: Optional[float] = None
        self._marks: Dict[int, Tuple[Any, ...]] = {}
        self._still: Dict[int, float] = {}
        self._longest: Dict[int, float] = {}

    def look(self, reports: Iterable[Dict[str, Any]], now: float) -> Dict[int, float]:
        """Return seconds without progress, by global rank, of the ranks that have made no progress for too long.

        Args:
            reports: newest report of each rank that still runs.
            now: monotonic seconds.
        """
        passed = min(now - self._looked, LONGEST_GAP_SECONDS) if self._looked is not None else 0.0
        self._looked = now
        for report in reports:
            rank = report["rank"]
            mark = tuple(report.get(name) for name in ("counter", "step", "epoch", "phase"))
            begun = report["step"] > 0 and report.get("phase") not in _BEFORE_STEPS
            if begun and self._marks.get(rank) == mark:
                self._still[rank] += passed
            else:
                self._longest[rank] = max(self._longest.get(rank, 0.0), self._still.get(rank, 0.0))
                self._still[rank] = 0.0
            self._marks[rank] = mark
        limit = math.inf if self.seconds is None else self._patience
        return {rank: still for rank, still in self._still.items() if still >= limit}

    def quiet(self, report: Dict[str, Any]) -> Optional[float]:
        """Return seconds without progress of the rank of a report, if that is unusually long."""
        rank = report["rank"]
        least = QUIET_SECONDS if report.get("phase", "step") == "step" else QUIET_SECONDS_ELSEWHERE
        still = self._still.get(rank, 0.0)
        return round(still, 1) if still >= max(least, QUIET_TIMES * self._longest.get(rank, 0.0)) else None

    def wait_for_others(self) -> bool:
        """Wait for the rank that blocks all others to be identified first; False: it has had its time."""
        waits = self.seconds is not None and self._patience == self.seconds
        self._patience += MEETING_SECONDS if waits else 0.0
        return waits


class StackLocation(NamedTuple):
    """The position of the main thread of a rank."""

    frame: str  # innermost of the user's own program, as `train.py:57 in read_batch`; empty: not known
    waits: bool  # for other ranks


def stack_location(stacks: str) -> StackLocation:
    """Read the stacks of all threads, as `faulthandler` writes them: innermost frames first, the main thread last."""
    main = re.split(r"^(?:Current thread|Thread) ", stacks, flags=re.MULTILINE)[-1]
    waits = False
    for found in _FRAME.finditer(main):
        if not _LIBRARIES.search(found["file"]):
            return StackLocation(f"{found['file'].rpartition('/')[2]}:{found['line']} in {found['name']}", waits)
        waits = waits or any(each in found["file"] for each in _MEETING_PLACES)
    return StackLocation("", waits)


class Hung(NamedTuple):
    """The rank that hangs, and why."""

    rank: int
    secondary: bool
    message: str
    stacks: str


def find_hung_rank(
    overdue: Dict[int, float], stacks: Dict[int, str], reports: List[Dict[str, Any]], *, world: int
) -> Hung:
    """Return the rank that all others wait for: one that does not wait itself, if there is one.

    A rank without stacks may be waiting or not: it is named before those that wait.

    Args:
        overdue: seconds without progress by rank; not empty.
        stacks: of all threads, by rank.
        reports: newest report of each rank.
        world: number of ranks; a single rank never waits for others, also not in its backward pass.
    """
    steps = {report["rank"]: report["step"] for report in reports}
    places = {rank: stack_location(stacks.get(rank, "")) for rank in overdue}
    if world == 1:
        places = {rank: found._replace(waits=False) for rank, found in places.items()}
    rank = min(overdue, key=lambda each: (places[each].waits, not stacks.get(each), steps.get(each, 0), each))
    frame, waits = places[rank]
    where = f", at {frame}" if frame else ""
    text = f"no step for {overdue[rank]:.0f} s after step {steps.get(rank, 0)}{where}"
    return Hung(rank, waits, text + (", waiting for other ranks" if waits else ""), stacks.get(rank, ""))
