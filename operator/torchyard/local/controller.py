"""A TrainingJob on one machine with no Kubernetes: the same controller, wired to processes instead of an API server.

Only wiring: `reconcile` decides, this package and `agents` execute.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from torchyard.agents.registry import AgentRegistry
from torchyard.agents.server import Application, application, unix_intake
from torchyard.api.reasons import Reason
from torchyard.api.resource import TrainingJob
from torchyard.api.status import State, TrainingJobStatus
from torchyard.local.cluster import LocalCluster, Pods
from torchyard.local.gang_share import GangShare
from torchyard.local.pods import LocalPods
from torchyard.local.run import Event, NoRunError, RunFolder, edit_job, read_run, write_status_file
from torchyard.local.runs import control, discard_run, suspend_run
from torchyard.local.templates import Templates
from torchyard.reconcile.actions import EmitEvent
from torchyard.reconcile.loop.controller import Controller

FOLLOW_SECONDS = 0.3
SYNC_SECONDS = 0.5, 5.0
LAST_SECONDS = 5.0


class Gang(Protocol):
    """The other machines of a gang."""

    share: GangShare

    def spread(
        self,
        local: LocalPods,
        job: Callable[[], TrainingJob | None],
        changed: Callable[[], None],
        gone: Callable[[str], None],
    ) -> Pods:
        """Return the pods of all machines."""
        ...

    def listening(self, app: Application) -> contextlib.AbstractAsyncContextManager[None]:
        """Serve the other machines, and the agents on them, for the duration of the block."""
        ...


OnChange = Callable[[TrainingJob, list[Event]], None]
OnWrite = Callable[[TrainingJob, TrainingJobStatus], None]


async def run_job(
    folder: RunFolder,
    *,
    on_change: OnChange = lambda _job, _events: None,
    stop: asyncio.Event | None = None,
    kill: asyncio.Event | None = None,
    templates: Templates | None = None,
    written: OnWrite = lambda _job, _status: None,
    gang: Gang | None = None,
) -> TrainingJob:
    """Control a run until its job is finished, suspended or deleted, and no process of it is left.

    Pods that a former controller left are adopted where they can be, ended where they cannot: never two gangs.

    Args:
        folder: of a run made by `create_run`.
        on_change: called in the event loop with the job and the events that are new, whenever either changed.
        stop: once set, the job is suspended: saved and stopped within `spec.gracePeriod`.
        kill: once set, every process of the job is killed now, and the job is suspended.
        templates: of the process, which the caller closes; its own without them.
        written: called with the job as it was and each status that was written.
        gang: the other machines of the gang; None: all pods are on this one.

    Returns:
        The job as it was left.

    Raises:
        RunBusyError: another process controls the run.
        ValueError: there is no such run, no agent to start its pods with, or TORCHYARD_TEMPLATE_OWNER is invalid.
        OSError: its folder takes no socket.
    """
    own = Templates()
    try:
        with control(folder):
            run = _Run(folder, on_change, templates or own, written, gang)
            return await run.until_over(stop or asyncio.Event(), kill or asyncio.Event())
    finally:
        await own.close()


class _Run:
    """The wiring of one run, for as long as this process controls it."""

    def __init__(
        self, folder: RunFolder, on_change: OnChange, templates: Templates, written: OnWrite, gang: Gang | None
    ) -> None:
        job = read_run(folder)
        if job is None:
            raise NoRunError(folder)
        self.folder = folder
        self.job = job
        self.on_change = on_change
        self.changed = asyncio.Event()
        shortest, longest = SYNC_SECONDS
        interval = min(longest, max(shortest, float(job.spec.metrics.interval)))
        self.registry = AgentRegistry(time.time, interval=interval, on_news=lambda _uid: self.look())
        self.gang = gang
        self.cluster = LocalCluster(
            folder,
            changed=self.look,
            gone=self.registry.forget,
            templates=templates,
            share=gang.share if gang is not None else None,
            spread=gang.spread if gang is not None else None,
        )
        self.controller = Controller(self.cluster, self.registry, clock=time.time, written=written)

    def look(self) -> None:
        """Queue a reconcile after a change, and notify the watchers."""
        self.controller.enqueue(self.job.key)
        self.changed.set()

    async def until_over(self, stop: asyncio.Event, kill: asyncio.Event) -> TrainingJob:
        """Control the run until nothing is left to control."""
        self.cluster.read_tokens()
        async with contextlib.AsyncExitStack() as stack:
            await self.cluster.open(await self._listen(stack))
            stack.push_async_callback(self.cluster.close)
            stack.push_async_callback(self.controller.close)
            seen = _signature(self.folder.job_file)
            await self._edited(self.job)
            work = (self.controller.run(), self._follow_edits(seen), self._obey(stop, kill))
            controlling, *others = tasks = [asyncio.ensure_future(one) for one in work]
            over = asyncio.create_task(self._over())
            try:
                await asyncio.wait([over, *tasks], return_when=asyncio.FIRST_COMPLETED)
                if not over.done():
                    await asyncio.gather(*(task for task in tasks if task.done()))
                await over
                for task in others:
                    task.cancel()
                # What the last plan asked for after its status, events above all, is still carried out.
                await self.controller.close()
                await asyncio.wait([controlling], timeout=LAST_SECONDS)
                self._show()
            except BaseException:
                # No process is left that could stop them; the next `run` continues from the checkpoints.
                await self.cluster.kill_pods()
                raise
            finally:
                for task in (over, *tasks):
                    task.cancel()
                await asyncio.gather(over, *tasks, return_exceptions=True)
            if self.cluster.unrecorded and self.cluster.job(self.job.key) is not None:
                await self._record()
        if self.cluster.job(self.job.key) is None:
            await asyncio.to_thread(discard_run, self.folder, self.job.metadata.uid)
        return self.job

    async def _listen(self, stack: contextlib.AsyncExitStack) -> str:
        """Listen on the socket that agents of a former controller call, too; return its URL."""
        app = application(self.registry, self.cluster.authenticate)
        try:
            if self.gang is not None:
                await stack.enter_async_context(self.gang.listening(app))
            return await stack.enter_async_context(unix_intake(app, self.folder.socket_file))
        except OSError as error:
            why = f"no socket can be made here ({error.strerror}); set TORCHYARD_HOME to a folder on a local disk"
            raise OSError(error.errno, why, str(self.folder.socket_file)) from error

    async def _over(self) -> None:
        """Show every change; return when nothing is left to control."""
        while True:
            self.changed.clear()
            job = self._show()
            if job is None:
                await self.cluster.kill_pods()
                return
            state = job.status.state
            if (state.terminal or (state == State.SUSPENDED and job.spec.suspend)) and self.cluster.idle:
                return
            await self.changed.wait()

    def _show(self) -> TrainingJob | None:
        """Pass the job and new events to the watchers; return the job as it is now, None once it is deleted."""
        job = self.cluster.job(self.job.key)
        self.job = job or self.job
        self.on_change(self.job, self.cluster.take_events())
        return job

    async def _follow_edits(self, seen: object) -> None:
        """Follow the edits of `job.yaml` by other terminals: suspend, resume, remove."""
        while True:
            await asyncio.sleep(FOLLOW_SECONDS)
            signature = _signature(self.folder.job_file) or self.folder.path.is_dir()
            if signature == seen:
                continue
            try:
                await self._edited(await asyncio.to_thread(read_run, self.folder))
            except OSError as error:
                self.cluster.trouble(f"{error.strerror}; the edited job file cannot be followed")
                continue
            except ValueError as error:
                message = f"the edited job file is not used: {error}"
                await self.cluster.emit_event(
                    self.job, EmitEvent(type="Warning", reason=Reason.INVALID_SPEC, message=message)
                )
            seen = signature

    async def _edited(self, edited: TrainingJob | None) -> None:
        job = self.cluster.job(self.job.key)
        if job is None or (edited is None and self.folder.path.is_dir()):
            return  # an editor that replaces the file takes it away for a moment; `rm` sets a deletion timestamp
        if edited is None or edited.metadata.uid != job.metadata.uid or edited.metadata.deletion_timestamp is not None:
            await self.cluster.delete_job(job)
            return
        if _unnumbered(edited, job):
            # Edited by hand: every change of the spec is a new generation.
            generation = job.metadata.generation + 1
            edited = await asyncio.to_thread(
                edit_job, self.folder, lambda now: _numbered(now, generation) if _unnumbered(now, job) else now
            )
        self.cluster.replace_job(edited)

    async def _obey(self, stop: asyncio.Event, kill: asyncio.Event) -> None:
        asked = [asyncio.create_task(event.wait()) for event in (stop, kill)]
        try:
            await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            await self._suspend()
            await kill.wait()
            await self.cluster.kill_pods()
            await asyncio.Event().wait()
        finally:
            for task in asked:
                task.cancel()

    async def _suspend(self) -> None:
        """Write the request to stop. On a full disk the run stops without it, and is continued as an interrupted one.

        Nothing is lost: a stop only saves, and deletes pods.
        """
        job = self.cluster.job(self.job.key)
        if job is None or job.status.state.terminal:
            return
        try:
            await self._edited(await asyncio.to_thread(suspend_run, self.folder, True))
        except OSError as error:
            self.cluster.trouble(f"{self.folder.path}: {error.strerror}; the run stops without a record of it")
            self.cluster.unrecorded = True
            stopped = msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, suspend=True))
            self.cluster.replace_job(_numbered(stopped, job.metadata.generation + 1))

    async def _record(self) -> None:
        """Write how the run was left, if there is space by now."""
        with contextlib.suppress(OSError, NoRunError):
            await asyncio.to_thread(write_status_file, self.folder, self.job)
            if self.job.spec.suspend:
                await asyncio.to_thread(suspend_run, self.folder, True)


def _unnumbered(edited: TrainingJob, job: TrainingJob) -> bool:
    return edited.spec != job.spec and edited.metadata.generation <= job.metadata.generation


def _numbered(job: TrainingJob, generation: int) -> TrainingJob:
    return msgspec.structs.replace(job, metadata=msgspec.structs.replace(job.metadata, generation=generation))


def _signature(path: Path) -> object:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
