"""What the cluster refused to do for a job, kept between two looks at it, with a back-off of its own.

A new process knows of no refusal: it tries once, and is told again.
"""

import random
from collections.abc import Callable

from torchyard.api.resource import TrainingJob
from torchyard.engine.ports import Refused
from torchyard.engine.view import Refusal

FIRST_SECONDS = 1.0
MOST_SECONDS = 60.0


class Refusals:
    """By job uid.

    Args:
        clock: unix seconds.
        jitter: drawn for every refusal, a factor in [0, 1); the delay grows by up to half of itself.
    """

    def __init__(self, clock: Callable[[], float], jitter: Callable[[], float] = random.random) -> None:
        self._clock, self._jitter = clock, jitter
        self._known: dict[str, tuple[int, int, Refusal]] = {}  # generation, times in a row, the newest

    def of(self, job: TrainingJob) -> Refusal | None:
        """What stands in the way of this job as it is specified now."""
        generation, _, refusal = self._known.get(job.metadata.uid, (0, 0, None))
        return refusal if generation == job.metadata.generation else None

    def note(self, job: TrainingJob, error: Refused) -> float:
        """Remember a refusal. Returns the seconds until the job must be looked at: none if there is news to tell."""
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
        """The job is gone, or what was refused was done."""
        self._known.pop(job_uid, None)
