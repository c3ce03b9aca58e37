"""When a status is written: only if it differs, a change of state at once, mere figures once an interval.

Each write costs the API server about what a pod costs it until it runs. So what a job that makes no steps waits for is
told anew less often, as long as the reason stays the same; and a process that just started, which does not know when
the last write was, writes no figures at once: those of a thousand jobs would stand before what users wait for.
"""

from collections.abc import Callable

from torchyard.api.resource import TrainingJob
from torchyard.api.status import TrainingJobStatus
from torchyard.engine.actions import WriteStatus
from torchyard.engine.ports import Cluster

WAITING_SECONDS = 30.0


class StatusWriter:
    """Writes the statuses of all jobs.

    Args:
        cluster: where to.
        clock: unix seconds.
    """

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._began = clock()
        self._written: dict[str, float] = {}  # job uid -> when

    async def write(self, job: TrainingJob, action: WriteStatus, interval: float) -> float | None:
        """Write, or return the seconds after which these figures may be written.

        Args:
            job: as it was read.
            action: the status the plan wants.
            interval: `spec.metrics.interval` in seconds.
        """
        if action.status == job.status:
            return None
        age = self._clock() - self._written.get(job.metadata.uid, self._began)
        pause = interval if action.status.state == "Running" else max(interval, WAITING_SECONDS)
        # A clock that was set back must not silence a job.
        if not action.urgent and 0 <= age < pause:
            return pause - age
        await self._write(job, action.status)
        return None

    def forget(self, job_uid: str) -> None:
        """Drop a job that is gone."""
        self._written.pop(job_uid, None)

    async def _write(self, job: TrainingJob, status: TrainingJobStatus) -> None:
        await self._cluster.write_status(job, status)
        self._written[job.metadata.uid] = self._clock()
