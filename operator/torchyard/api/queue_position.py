"""The place of a job in its queue, and when it may start, in words for `status`, `ps` and `explain`."""

import math

from torchyard.api.status import GangStatus
from torchyard.api.values import plural

CONDITION = "if running jobs end as they forecast"
SOON_SECONDS, COARSE_SECONDS = 60.0, 900.0


def words(gang: GangStatus | None, now: float) -> str:
    """Return place and estimate: `place 3 in the queue, about 40 min, if running jobs ...`; empty: not known."""
    if gang is None or gang.position is None:
        return ""
    place = "next in the queue" if gang.position == 1 else f"place {gang.position} in the queue"
    wait = about(gang, now)
    said = f"{place}, {wait}, {CONDITION}" if wait else place
    if not gang.uncounted:
        return said
    others = f"{plural(gang.uncounted, 'Workload')} ahead of it {'is' if gang.uncounted == 1 else 'are'}"
    return f"{said}; {others} not of TrainingJobs" + (" and not counted" if wait else "")


def about(gang: GangStatus | None, now: float) -> str:
    """Return the estimate of the wait, rounded: `about 40 min`, `soon`; empty: there is none."""
    if gang is None or gang.expected_start_time is None:
        return ""
    left = gang.expected_start_time - now
    return "soon" if left < SOON_SECONDS else f"about {coarse(left)}"


def coarse(seconds: float) -> str:
    """Return a length of time as an estimate, rounded up: 40 min, 3 h, 2 d."""
    for size, unit in ((86400.0, "d"), (3600.0, "h")):
        if seconds >= 2 * size:
            return f"{math.ceil(seconds / size)} {unit}"
    step = 5 if seconds > COARSE_SECONDS else 1
    return f"{step * math.ceil(seconds / (60.0 * step))} min"
