"""When the next checkpoint is due. Pure: the clock is an argument."""

from torchyard_trainers.core.config import Interval

# Without an interval, saving may cost 1 % of the time, and a failure loses at most half an hour.
AUTO_SECONDS = (10.0, 1800.0)
AUTO_COST = 0.01


class Cadence:
    """Decides after each step; asked on rank 0 only, whose answer the ranks agree on."""

    def __init__(self, interval: Interval | None, *, step: int, now: float) -> None:
        """Count from `step` at time `now` (monotonic seconds)."""
        self._interval = interval
        self._step = step
        self._time = now
        self._cost = 0.0

    def due(self, step: int, now: float) -> bool:
        """Whether to save after `step` finished steps."""
        if self._interval is not None and self._interval.steps is not None:
            return step % self._interval.steps == 0
        return now - self._time >= self.period()

    def period(self) -> float:
        """Seconds between two saves."""
        if self._interval is not None and self._interval.seconds is not None:
            return float(self._interval.seconds)
        shortest, longest = AUTO_SECONDS
        return min(max(shortest, self._cost / AUTO_COST), longest)

    def saved(self, step: int, now: float, seconds: float) -> None:
        """Learn when a save ended and what it cost."""
        self._step, self._time, self._cost = step, now, seconds
