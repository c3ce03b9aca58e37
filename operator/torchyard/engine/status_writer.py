"""Status writes: only if the status differs; transitions at once, figures at most once per interval.

A write costs the API server about as much as a pod until it runs. Therefore the message of a waiting job is updated
less often while its reason stays the same, and a new process postpones figures: those of a thousand jobs would delay
transitions. For the same reason, the first status of a job whose pods exist is written after pods of other jobs.
"""

from collections.abc import Callable

from msgspec.structs import replace

from torchyard.api.resource import TrainingJob
from torchyard.api.states import State
from torchyard.api.times import rfc3339
from torchyard.engine.actions import WriteStatus
from torchyard.engine.ports import Cluster, Refused, StatusRefused

WAITING_SECONDS = 30.0
LOOK_SECONDS = 5.0  # whether pods of other jobs are still queued


class StatusWriter:
    """Writes the statuses of all jobs.

    Args:
        cluster: receives the writes.
        clock: unix seconds.
    """

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._began = clock()
        self._written: dict[str, float] = {}  # job uid -> when

    async def write(self, job: TrainingJob, action: WriteStatus, interval: float) -> float | None:
        """Write or postpone a status; return the seconds until the next reconcile, None: when something changes.

        Args:
            job: as it was read.
            action: the status the plan wants.
            interval: `spec.metrics.interval` in seconds.
        """
        if action.status == job.status:
            return None
        now = self._clock()
        if self._cluster.busy and now < action.yields_until:
            return min(LOOK_SECONDS, action.yields_until - now)
        age = now - self._written.get(job.metadata.uid, self._began)
        pause = interval if action.status.state == State.RUNNING else max(interval, WAITING_SECONDS)
        # A clock that was set back must not block writes.
        if not action.urgent and 0 <= age < pause:
            return pause - age
        try:
            await self._cluster.write_status(job, replace(action.status, last_update_time=rfc3339(now)))
        except Refused as error:
            raise StatusRefused(error.reason, error.message, retry_after=error.retry_after) from error
        self._written[job.metadata.uid] = self._clock()
        return 0.0 if action.urgent else None  # a plan makes at most one transition; the next one may be due already

    def forget(self, job_uid: str) -> None:
        """Forget a job that is gone."""
        self._written.pop(job_uid, None)
