"""The protocol that the Python API and the command line use for a location where jobs run.

Two implementations: `local.LocalBackend` for this machine, `cluster.ClusterBackend` for a cluster.
"""

from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from torchyard.api.resource import TrainingJob
    from torchyard.client.artifacts import Allowance, Artifact
    from torchyard.client.curves import Curves, Scale
    from torchyard.client.explanation import Explanation
    from torchyard.client.job_details import JobDetails
    from torchyard.client.ranks import RankStacks
    from torchyard.client.summaries import Summary
    from torchyard.local.run import Event

Document = dict[str, Any]
Notice = Callable[[str], None]
"""Called with a sentence that a user should read, though the request goes on."""


class Kept(NamedTuple):
    """A job with facts that only its backend knows."""

    job: "TrainingJob"
    document: Document
    """The whole object, as `-o json` prints it."""
    controlled: bool = True
    """Whether something acts on the job: the operator, or a process of this machine."""
    detached: bool = False
    """Whether its pods live on without a process that controls them."""


class Unreadable(NamedTuple):
    """A run whose files are damaged."""

    name: str
    sentence: str


class LogLine(Struct, frozen=True, kw_only=True):
    """One line of a rank's output, without control characters.

    Attributes:
        rank: rank of the worker; None for a line of the agent, or of a pod without an agent, whose ranks are unknown.
        pod: name of its pod.
        text: the line, without the line break.
        time: RFC 3339, for a job on a cluster; empty on this machine, whose logs have no times.
        agent: whether the agent itself wrote it.
        round: of a line that the status keeps of a round whose pod is gone; None for all others.
    """

    rank: int | None
    pod: str
    text: str
    time: str = ""
    agent: bool = False
    round: int | None = None

    def __str__(self) -> str:
        who = f"r{self.rank} " if self.rank is not None else "agent " if self.agent else ""
        return f"[{who}{self.pod}{f' round {self.round}' if self.round is not None else ''}] {self.text}"


class Away(Struct, frozen=True):
    """The API server does not answer for now."""

    why: str


States = AsyncIterator["TrainingJob | Away | None"]
"""The job each time that it changed; None: it is gone."""


THIS_MACHINE = "this machine"
RECORD = "environment.json"
"""Written by the agent of node rank 0: what the newest round runs with."""
MAX_RECORD = 1 << 20


class Backend(Protocol):
    """The jobs of one location. Every method raises `TorchYardError`, and `NotFoundError` where there is no job."""

    where: str
    """The location in words: `this machine`, `namespace team of context prod`."""
    cluster: str
    """The cluster in words: `context prod`; empty: this machine."""
    flags: str
    """What a proposed command repeats to mean the same location, with a space in front: ` -n team`."""

    async def get(self, name: str) -> Kept:
        """Return a job."""

    async def inspect(self, name: str) -> "tuple[Kept, JobDetails]":
        """Return a job with its newest figures and the details that its object does not have."""

    async def jobs(self, *, everywhere: bool = False) -> list[Kept | Unreadable]:
        """Return the jobs, newest first; `everywhere`: of all namespaces."""

    async def summaries(self, *, everywhere: bool = False) -> "list[Summary | Unreadable]":
        """Return what a list shows of the jobs, newest first; `everywhere`: of all namespaces."""

    def states(self, name: str, uid: str = "", *, until_deleted: bool = False) -> "States":
        """Yield a job at each change, and None after its deletion.

        Args:
            name: of the job.
            uid: of the job; by default that of the first job seen. Later jobs with the same name are not followed.
            until_deleted: wait for the deletion only, so the run need not be controlled.
        """

    async def events(self, name: str) -> "list[Event]":
        """Return the events of a job, oldest first."""

    def logs(
        self,
        name: str,
        uid: str = "",
        *,
        rank: int | None = None,
        follow: bool = False,
        tail: int | None = None,
        round_number: int | None = None,
    ) -> AsyncIterator[LogLine]:
        """Yield the output of the ranks, starting with the rank that failed first.

        Args:
            name: of the job.
            uid: of the job; later jobs with the same name are not followed.
            rank: only this one; None: all.
            follow: wait for new lines until the job is over, through new rounds and pods.
            tail: only this many of the last lines of each rank.
            round_number: what is kept of this failed round, also if its pods are gone; None: all that pods have.
        """

    async def explain(self, name: str) -> "Explanation":
        """Explain a job's state: a sentence, then the evidence."""

    async def suspend(self, name: str) -> Kept:
        """Request a checkpoint and the end of the pods."""

    async def resume(self, name: str) -> Kept:
        """Undo `suspend`."""

    async def scale(self, name: str, nodes: int) -> Kept:
        """Set `spec.nodes`, which `require_scalable` allows."""

    async def delete(self, name: str) -> None:
        """Delete a job with its pods; on this machine with its logs and checkpoints."""

    async def environment(self, name: str) -> bytes | None:
        """Return `environment.json` of the checkpoint folder, at most `MAX_RECORD` of it; None if it does not exist.

        Raises:
            TorchYardError: no pod has access to the checkpoint folder.
        """

    async def artifacts(self, name: str) -> "list[Artifact]":
        """Return the artifacts in the checkpoint folder."""

    async def fetch(self, name: str, wanted: Path, to: Path, allowance: "Allowance") -> None:
        """Copy a file or folder of the checkpoint folder to `to`, which must not exist."""

    async def curves(self, name: str, wanted: Iterable[str] | None = None, scale: "Scale" = "overview") -> "Curves":
        """Return the curves of a job, also after its pods are gone.

        Args:
            name: of the job.
            wanted: names of metrics; None: all.
            scale: level of the buckets: at most 512 or 2,048 of equal width, or ones for a logarithmic axis.
        """

    async def stacks(self, name: str) -> "list[RankStacks]":
        """Return the stack of each rank."""

    async def profile(self, name: str, wish: str, *, replace: bool) -> int:
        """Request a profile from the ranks; return the number of pods that received the request."""


def location_flags(context: str | None, namespace: str | None) -> str:
    """Return the flags that a proposed command needs to refer to the same location."""
    given = (("-n", namespace), ("--context", context))
    return "".join(f" {flag} {value}" for flag, value in given if value is not None)


def logged(sentence: str) -> None:
    """Write a notice to the log `torchyard`, as the Python API does by default."""
    import logging

    logging.getLogger("torchyard").warning(sentence)
