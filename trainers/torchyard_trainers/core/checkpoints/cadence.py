"""When the next checkpoint is due. Pure: the clock is an argument."""

from torchyard_trainers.core.config import Interval

# Without an interval, saves may delay training for 1 % of the time and use the volume for 10 % of it, and a failure
# loses at most half an hour.
AUTO_SECONDS = (10.0, 1800.0)
AUTO_STALL = 0.01
AUTO_WRITING = 0.1


class Cadence:
    """Decides after each step whether to save; used on rank 0, which decides for all ranks."""

    def __init__(self, interval: Interval | None, *, now: float, save_every: int = 1) -> None:
        """Count from time `now` (monotonic seconds); the workload can be saved every `save_every` steps only."""
        self._interval = interval
        self._save_every = save_every
        self._time = now
        self._cost = 0.0

    def due(self, step: int, now: float) -> bool:
        """Whether to save after `step` finished steps, a multiple of `save_every`."""
        if self._interval is not None and self._interval.steps is not None:
            before = step - self._save_every
            return step // self._interval.steps > before // self._interval.steps
        return now - self._time >= self.period()

    def period(self) -> float:
        """Seconds between two saves."""
        if self._interval is not None and self._interval.seconds is not None:
            return float(self._interval.seconds)
        shortest, longest = AUTO_SECONDS
        return min(max(shortest, self._cost), longest)

    def begun(self, now: float) -> None:
        """Record when a save began: the next one is due one period later."""
        self._time = now

    def saved(self, *, stall: float, seconds: float) -> None:
        """Record the cost of a save: seconds that training waited, and seconds from its start to its commit."""
        self._cost = max(stall / AUTO_STALL, seconds / AUTO_WRITING)
