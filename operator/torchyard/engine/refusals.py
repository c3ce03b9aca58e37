"""Writes that the cluster rejected, kept between two plans of a job, with a separate back-off.

A new process knows of no rejection: it tries once, and is rejected again.
"""

import random
from collections.abc import Callable

from torchyard.api.resource import TrainingJob
from torchyard.engine.ports import Refused
from torchyard.engine.view import Refusal

FIRST_SECONDS = 1.0
MOST_SECONDS = 60.0


class Refusals:
    """The newest rejection of each job, by uid.

    Args:
        clock: unix seconds.
        jitter: drawn for every refusal, a factor in [0, 1); the delay grows by up to half of itself.
    """

    def __init__(self, clock: Callable[[], float], jitter: Callable[[], float] = random.random) -> None:
        self._clock, self._jitter = clock, jitter
        self._known: dict[str, tuple[int, int, Refusal]] = {}  # generation, times in a row, the newest

    def of(self, job: TrainingJob) -> Refusal | None:
        """Return the rejection that concerns the current generation of this job."""
        generation, _, refusal = self._known.get(job.metadata.uid, (0, 0, None))
        return refusal if generation == job.metadata.generation else None

    def note(self, job: TrainingJob, error: Refused) -> float:
        """Store a rejection; return the seconds until the next reconcile, 0 if the status has to change."""
        now, before = self._clock(), self.of(job)
        same = before is not None and before.reason == error.reason
        times = self._known[job.metadata.uid][1] + 1 if same else 1
        delay = error.retry_after or min(MOST_SECONDS, FIRST_SECONDS * 2.0 ** min(times - 1, 16))
        delay *= 1.0 + self._jitter() / 2
        refusal = Refusal(
            reason=error.reason,
            message=error.message,
            permanent=error.permanent,
            since=before.since if before is not None and same else now,
            until=now + delay,
        )
        self._known[job.metadata.uid] = (job.metadata.generation, times, refusal)
        return delay if before is not None and same and before.message == error.message else 0.0

    def forget(self, job_uid: str) -> None:
        """Forget a job that is gone or whose write succeeded."""
        self._known.pop(job_uid, None)
