"""The `Cluster` port of the reconciler on one machine.

One run: its job, its pods as process groups, its status and events as files.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from torchyard.api.resource import TrainingJob
from torchyard.api.status import TrainingJobStatus
from torchyard.local.events import Events
from torchyard.local.gang_share import GangShare
from torchyard.local.pods import LocalPods
from torchyard.local.run import Event, RunFolder, read_run, write_status_file
from torchyard.local.templates import Templates
from torchyard.reconcile.actions import CreatePod, DeletePod, EmitEvent
from torchyard.reconcile.code import Program, program_of
from torchyard.reconcile.observed import Pod
from torchyard.reconcile.ports import Key, Unavailable
from torchyard.reconcile.profile import NO_PROFILE, ProfileVerdict
from torchyard.schedulers.none import NOTHING
from torchyard.schedulers.protocol import Change, Request


class Pods(Protocol):
    """The pods of a run: processes of this machine, or of several."""

    @property
    def idle(self) -> bool:
        """Return whether no pod lives and none is being started or deleted."""
        ...

    def views(self, job_uid: str) -> tuple[Pod, ...]:
        """Return every pod of the job."""
        ...

    def create(self, job: TrainingJob, action: CreatePod) -> None:
        """Create a pod; one of that name is success."""
        ...

    def delete(self, action: DeletePod) -> None:
        """Request deletion; a pod that is gone is success."""
        ...

    def token_owner(self, token: str) -> str | None:
        """Return the uid of the pod that a token identifies."""
        ...

    def read_tokens(self) -> None:
        """Load the tokens of pods that may still run."""
        ...

    async def open(self, url: str) -> None:
        """Take up what a former controller left; agents of this machine call `url`."""
        ...

    async def kill(self) -> None:
        """Kill everything; return when nothing lives."""
        ...

    async def close(self) -> None:
        """Stop watching; living pods continue."""
        ...


Spread = Callable[[LocalPods, Callable[[], TrainingJob | None], Callable[[], None], Callable[[str], None]], Pods]
"""Returns the pods of several machines: pods of this one, the job as it is now, what to call when a pod changed, and
when the object of a pod is gone."""


class LocalCluster:
    """The cluster of one run.

    Args:
        folder: of the run; `job.yaml` is there.
        changed: called when the job, its pods, its status or its events changed.
        gone: called with the uid of a pod whose object is gone.
        templates: of the process; without them, each pod imports torch itself.
        share: the part of the gang that is on this machine; None: all of it.
        spread: adds the pods of other machines.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        changed: Callable[[], None] = lambda: None,
        gone: Callable[[str], None] = lambda _uid: None,
        templates: Templates | None = None,
        share: GangShare | None = None,
        spread: Spread | None = None,
    ) -> None:
        self.folder = folder
        self._changed = changed
        self._job: TrainingJob | None = read_run(folder)
        self._events = Events(folder, changed)
        self.unrecorded = False
        """Whether the run stops without a record: then a status counts although it cannot be written."""
        local = LocalPods(
            folder,
            job=lambda: self._job,
            changed=changed,
            gone=gone,
            trouble=self._events.trouble,
            templates=templates,
            share=share,
        )
        self._pods: Pods = local if spread is None else spread(local, lambda: self._job, changed, gone)

    # The port `Cluster` of the reconciler.

    @property
    def busy(self) -> bool:
        """Whether writes have to wait for their turn: a disk has none."""
        return False

    def job(self, key: Key) -> TrainingJob | None:
        """Return the job as last seen, None once it is gone."""
        return self._job if self._job is not None and self._job.key == key else None

    def keeps_files(self, job: TrainingJob) -> bool:  # noqa: ARG002 -- of whichever
        """Return whether checkpoints and exports outlive the pods: they lie in the run's folder."""
        return True

    def images(self, job: TrainingJob) -> None:
        """Return None: pods are processes of this machine."""

    def program(self, job: TrainingJob) -> Program | None:
        """Return the program by its digest alone: agents of this machine start with the run, and so know it."""
        return program_of(job.spec, [], {})

    def pods(self, job_uid: str) -> tuple[Pod, ...]:
        """Return every pod of the job."""
        return self._pods.views(job_uid)

    def scheduling(self, job: TrainingJob) -> Request:  # noqa: ARG002 -- of whichever
        """Return that nothing is asked for: all pods of a job start on this machine."""
        return Request(name="", scheduler=NOTHING)

    def profile(self, job: TrainingJob) -> ProfileVerdict:  # noqa: ARG002 -- profiles are objects of a cluster
        """Return no profile."""
        return NO_PROFILE

    def node_memory(self) -> None:
        """Return None: all pods are on this machine."""

    async def create_pod(self, job: TrainingJob, action: CreatePod) -> None:
        """Create a pod; one of that name is success, all pods here are the job's own."""
        self._pods.create(job, action)

    async def delete_pod(self, job: TrainingJob, action: DeletePod) -> None:  # noqa: ARG002 - one run, one job
        """Ask for deletion; a pod that is already gone, or another one by now, is success."""
        self._pods.delete(action)

    async def change_object(self, job: TrainingJob, change: Change) -> None:
        """Never called: no scheduler of this machine has objects."""
        raise AssertionError(f"{job.metadata.name}: {change.kind.kind} on a machine")

    async def write_status(self, job: TrainingJob, status: TrainingJobStatus) -> None:
        """Replace the status; it counts once it is on disk, or if the run stops without a record.

        Raises:
            Unavailable: it cannot be written, on a full disk for example.
        """
        if self._job is None or self._job.metadata.uid != job.metadata.uid:
            return
        written = msgspec.structs.replace(self._job, status=status)
        try:
            await asyncio.to_thread(write_status_file, self.folder, written)
        except OSError as error:
            self.trouble(f"{self.folder.status_file}: {error.strerror}")
            if not self.unrecorded:
                raise Unavailable(f"{self.folder.status_file} cannot be written: {error}") from error
        if self._job is not None:  # it may have been edited or deleted in the meantime
            self._job = msgspec.structs.replace(self._job, status=status)
        self._changed()

    async def emit_event(self, job: TrainingJob, event: EmitEvent) -> None:  # noqa: ARG002 - one run, one job
        """Record an event on the job; one that cannot be written now is shown all the same, and written later."""
        await self._events.record(event)

    async def delete_job(self, job: TrainingJob) -> None:
        """Delete the job; its folder is removed when the controlling process releases it."""
        if self._job is not None and self._job.metadata.uid == job.metadata.uid:
            self._job = None
            self._changed()

    # What the laptop's wiring asks.

    @property
    def idle(self) -> bool:
        """Whether no pod lives and none is being started or deleted."""
        return self._pods.idle

    async def authenticate(self, token: str) -> str | None:
        """Return the pod that this token identifies."""
        return self._pods.token_owner(token)

    def read_tokens(self) -> None:
        """Load the tokens of pods that may still run, before the first of them calls."""
        self._pods.read_tokens()

    async def open(self, url: str) -> None:
        """Take up what a former controller left: adopt pods whose agents know this intake, end all others.

        Args:
            url: of the intake.

        Raises:
            ValueError: there is no agent to start pods with.
        """
        for folder in (self.folder.pods, self.folder.checkpoints, self.folder.cache):
            folder.mkdir(parents=True, exist_ok=True)
        await self._pods.open(url)

    def take_events(self) -> list[Event]:
        """Return the events recorded since the last call."""
        return self._events.take()

    def trouble(self, sentence: str) -> None:
        """Report to the live view what the run's folder rejects just now."""
        self._events.trouble(sentence)

    def replace_job(self, job: TrainingJob) -> None:
        """Store an edited job; its status stays the one written here."""
        if self._job is not None:
            self._job = msgspec.structs.replace(job, status=self._job.status)
            self._changed()

    async def kill_pods(self) -> None:
        """Kill everything with SIGKILL; return when nothing lives."""
        await self._pods.kill()

    async def close(self) -> None:
        """Stop watching. Living pods continue without this process."""
        await self._pods.close()
        await self._events.close()
