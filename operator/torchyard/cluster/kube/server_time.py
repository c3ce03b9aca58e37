"""The API server's time of day, told on a clock of this machine that never jumps.

Times of one job are written and read by several processes on several machines: `spec.activeDeadline` counts from what a
former leader wrote, tokens expire when the API server says. So all of them go by the API server's clock, which every
answer tells, and a clock of ours that is wrong, or is set, ends no job.
"""

import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime

# Several API servers differ by a little, and need not be followed in it.
SLACK_SECONDS = 5.0


def boottime() -> float:
    """Seconds that go on while the machine sleeps and know nothing of wall clocks."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ServerTime:
    """Unix seconds of the API server; until it answered once, those of this machine.

    Args:
        steady: seconds that never jump.
        wall: unix seconds of this machine, read once.
    """

    def __init__(self, steady: Callable[[], float] = boottime, wall: Callable[[], float] = time.time) -> None:
        self.steady = steady
        self._ahead = wall() - steady()
        self._heard: str | None = None

    def __call__(self) -> float:
        """Now."""
        return self.steady() + self._ahead

    def hear(self, date: str | None, *, sent: float) -> None:
        """Take in the `Date` of an answer, which has whole seconds.

        Args:
            date: the header, None: there was none.
            sent: when the request was sent, by the steady clock: the answer was written between then and now.
        """
        if date is None or date == self._heard:
            return
        self._heard = date
        try:
            told = parsedate_to_datetime(date).timestamp()
        except ValueError:
            return
        least, most = told - self.steady(), told + 1.0 - sent
        if self._ahead < least - SLACK_SECONDS:
            self._ahead = least
        elif self._ahead > most + SLACK_SECONDS:
            self._ahead = most
