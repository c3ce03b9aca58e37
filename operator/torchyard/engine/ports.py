"""The outside world as the engine needs it. `cluster` and `intake` implement these; nothing here does I/O."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from torchyard.api.reasons import Reason
from torchyard.api.resource import TrainingJob
from torchyard.api.status import Images, TrainingJobStatus
from torchyard.engine.actions import CommandAgent, CreatePod, DeletePod, EmitEvent
from torchyard.engine.view import Agent, Pod

Key = tuple[str, str]  # (namespace, name)


class Conflict(Exception):  # noqa: N818 -- the API's own word
    """The object changed or is somebody else's; read again, then decide."""


class Unavailable(Exception):  # noqa: N818
    """The cluster did not answer or asked to wait; `retry_after` seconds, None: the caller's own back-off."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Refused(Exception):  # noqa: N818
    """The cluster understood a write and will not have it: quota, policy, a missing object, an invalid pod.

    Args:
        message: evidence for the user, without the name of the one pod it happened to.
        permanent: trying again cannot help; the job fails.
        retry_after: seconds before the next try; None: the caller's own back-off.
    """

    def __init__(
        self, reason: Reason, message: str, *, permanent: bool = False, retry_after: float | None = None
    ) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason, self.message, self.permanent, self.retry_after = reason, message, permanent, retry_after


class NameTaken(Exception):  # noqa: N818
    """A pod that the operator did not create has the name of one that it would create; another name is free."""


class StatusRefused(Refused):
    """The refusal concerns the status alone: it stands in no pod's way, and cannot be told there."""


class Cluster(Protocol):
    """Jobs, pods and events of one cluster.

    Reads answer from a cache that is never older than our own last write for that job.
    """

    @property
    def busy(self) -> bool:
        """Whether writes have to wait for their turn."""
        ...

    def job(self, key: Key) -> TrainingJob | None:
        """The job as last seen, None once it is gone."""
        ...

    def keeps_files(self, job: TrainingJob) -> bool:
        """Whether checkpoints and exports are still there once no pod of the job is."""
        ...

    def images(self, job: TrainingJob) -> Images | None:
        """Return the images that a new gang of the job gets; None where pods have none."""
        ...

    def pods(self, job_uid: str) -> tuple[Pod, ...]:
        """Return every pod that was created here for the job of this uid."""
        ...

    async def create_pod(self, job: TrainingJob, action: CreatePod) -> None:
        """Create a pod; a pod of that name that is ours is success.

        Raises:
            Refused: the cluster rejects it.
            NameTaken: a pod that is not ours has the name.
        """
        ...

    async def delete_pod(self, job: TrainingJob, action: DeletePod) -> None:
        """Ask for deletion; a pod that is already gone is success."""
        ...

    async def write_status(self, job: TrainingJob, status: TrainingJobStatus) -> None:
        """Replace the status of the job with this uid; a job that is gone is success, and `job` no longer tells it."""
        ...

    async def emit_event(self, job: TrainingJob, event: EmitEvent) -> None:
        """Record an event on the job."""
        ...

    async def delete_job(self, job: TrainingJob) -> None:
        """Delete the job, uid as precondition."""
        ...


class Agents(Protocol):
    """The book of what agents said and what they are told."""

    def of(self, pod_uids: Iterable[str]) -> Mapping[str, Agent]:
        """The agents of these pods that have called in, by pod uid."""
        ...

    def command(self, action: CommandAgent) -> None:
        """Set the wished-for command; the revision grows only if it differs from the last one."""
        ...

    def commanded(self, pod_uids: Iterable[str]) -> Mapping[str, CommandAgent]:
        """The command each of these agents was last given by this process."""
        ...

    def forget(self, pod_uid: str) -> None:
        """Drop a pod that is gone."""
        ...
