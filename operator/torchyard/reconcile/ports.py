"""Interfaces to the outside world, implemented by `kubernetes`, `local` and `agents`; nothing here performs I/O."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from torchyard.api.reasons import Reason
from torchyard.api.resource import TrainingJob
from torchyard.api.status import Images, TrainingJobStatus
from torchyard.reconcile.actions import CommandAgent, CreatePod, DeletePod, EmitEvent
from torchyard.reconcile.code import Program
from torchyard.reconcile.node_memory import NodeMemory
from torchyard.reconcile.observed import Agent, Pod
from torchyard.reconcile.profile import ProfileVerdict
from torchyard.schedulers.protocol import Change, Request

Key = tuple[str, str]  # (namespace, name)


class Conflict(Exception):  # noqa: N818 -- the API's own word
    """The object changed or belongs to another owner: read it again before deciding."""


class Unavailable(Exception):  # noqa: N818
    """The cluster did not answer or asked to wait `retry_after` seconds; None: the caller's back-off applies."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Refused(Exception):  # noqa: N818
    """The cluster rejected a write: quota, policy, a missing object, an invalid pod.

    Args:
        message: evidence for the user, without the name of the one pod it happened to.
        permanent: retrying cannot help; the job fails.
        retry_after: seconds before the next attempt; None: the caller's back-off applies.
    """

    def __init__(
        self, reason: Reason, message: str, *, permanent: bool = False, retry_after: float | None = None
    ) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason, self.message, self.permanent, self.retry_after = reason, message, permanent, retry_after


class NameTaken(Exception):  # noqa: N818
    """The name of a pod is taken by a pod that the operator did not create; another name is free."""


class StatusRefused(Refused):
    """The status was rejected: pods are not affected, and the status cannot report it."""


class Cluster(Protocol):
    """Jobs, pods and events of one cluster.

    Reads are served from a cache that is never older than this process's last write for the job.
    """

    @property
    def busy(self) -> bool:
        """Return whether writes have to wait for the rate limit."""
        ...

    def job(self, key: Key) -> TrainingJob | None:
        """Return the job as last seen; None once it is gone."""
        ...

    def keeps_files(self, job: TrainingJob) -> bool:
        """Return whether checkpoints and exports outlive the pods of the job."""
        ...

    def images(self, job: TrainingJob) -> Images | None:
        """Return the images that a new gang of the job gets; None if pods have no image."""
        ...

    def program(self, job: TrainingJob) -> Program | None:
        """Return what the next round of the job runs, where code travels with it; None: what is in its pods."""
        ...

    def pods(self, job_uid: str) -> tuple[Pod, ...]:
        """Return every pod that this operator created for the job."""
        ...

    def scheduling(self, job: TrainingJob) -> Request:
        """Return the gang scheduler of the job, and its objects as they are in the cache."""
        ...

    def profile(self, job: TrainingJob) -> ProfileVerdict:
        """Return what the profile of the job, as its user wrote it, means for it."""
        ...

    def node_memory(self) -> NodeMemory | None:
        """Return what is known of nodes that failed this job or others; None: there are no other nodes."""
        ...

    async def create_pod(self, job: TrainingJob, action: CreatePod) -> None:
        """Create a pod; an existing pod of that name created by this operator is success.

        Raises:
            Refused: the cluster rejects it.
            NameTaken: a pod of another creator has the name.
        """
        ...

    async def delete_pod(self, job: TrainingJob, action: DeletePod) -> None:
        """Request deletion; a pod that is gone already is success."""
        ...

    async def change_object(self, job: TrainingJob, change: Change) -> None:
        """Create, change or delete an object of a gang scheduler; one that is as wanted already is success.

        Raises:
            Refused: the cluster rejects it, or the name belongs to another owner.
        """
        ...

    async def write_status(self, job: TrainingJob, status: TrainingJobStatus) -> None:
        """Replace the status of the job with this uid; a job that is gone is success: `job` no longer returns it."""
        ...

    async def emit_event(self, job: TrainingJob, event: EmitEvent) -> None:
        """Record an event on the job."""
        ...

    async def delete_job(self, job: TrainingJob) -> None:
        """Delete the job, with its uid as precondition."""
        ...


class Agents(Protocol):
    """State and desired commands of the agents."""

    def of(self, pod_uids: Iterable[str]) -> Mapping[str, Agent]:
        """Return the agents of these pods that have connected, by pod uid."""
        ...

    def command(self, action: CommandAgent) -> None:
        """Set the desired command; its revision grows only if it differs from the last one."""
        ...

    def commanded(self, pod_uids: Iterable[str]) -> Mapping[str, CommandAgent]:
        """Return the last command that this process gave to each of these agents."""
        ...

    def forget(self, pod_uid: str) -> None:
        """Forget a pod that is gone."""
        ...
