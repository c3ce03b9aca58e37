"""The order in which a leader comes to its jobs at the beginning of a term: the one that has waited longest is first.

Each term begins with all jobs. An operator whose API server is overloaded loses its lease again and again; if its terms
always began with the same jobs, their writes would use up each term, and the last jobs would never get theirs.
"""

from collections.abc import Iterable

from torchyard.api.resource import TrainingJob
from torchyard.reconcile.ports import Key

MOST_JOBS = 100_000  # deleted jobs count until the next term


class Turns:
    """When each job was last reconciled by this process, as an order."""

    def __init__(self) -> None:
        self._done: dict[Key, None] = {}  # the latest is last

    def done(self, key: Key) -> None:
        """Note that a job was reconciled without an error."""
        self._done.pop(key, None)
        self._done[key] = None
        if len(self._done) > MOST_JOBS:
            self._done.pop(next(iter(self._done)))

    def order(self, jobs: Iterable[TrainingJob]) -> list[Key]:
        """Return the keys of all jobs, those without a state first; forget jobs that are not among them.

        A job without a state needs nothing but its pods.
        """
        states = {job.key: job.status.state for job in jobs}
        self._done = {key: None for key in self._done if key in states}
        place = {key: number for number, key in enumerate(self._done)}
        return sorted(states, key=lambda key: (bool(states[key]), place.get(key, -1)))
