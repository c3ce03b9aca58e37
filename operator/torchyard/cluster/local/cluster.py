"""The engine's port `Cluster` on one machine.

One run: its job, its pods as process groups, its status and events as files.
"""

import asyncio
import hmac
import itertools
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec

from torchyard.api import launch
from torchyard.api.resource import TrainingJob
from torchyard.api.status import TrainingJobStatus
from torchyard.cluster.local import gpus, record
from torchyard.cluster.local.environment import pod_environment, working_folder
from torchyard.cluster.local.events import Events
from torchyard.cluster.local.folder import RunFolder
from torchyard.cluster.local.pod import KILLED, LocalPod
from torchyard.cluster.local.record import Deletion, PodRecord, loopback_address
from torchyard.cluster.local.run import Event, read_run, write_status_file
from torchyard.cluster.local.zipapp import agent_zipapp
from torchyard.engine.actions import CreatePod, DeletePod, EmitEvent
from torchyard.engine.ports import Key, Unavailable
from torchyard.engine.view import Pod

MAX_LOG_FOLDERS = 32
RETRY_SECONDS = 2.0
_BEING_STARTED = ("", "the pod's processes are being started")


class LocalCluster:
    """The cluster of one run.

    Args:
        folder: of the run; `job.yaml` is there.
        changed: called when the job, its pods, its status or its events changed.
        gone: called with the uid of a pod whose object is gone.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        changed: Callable[[], None] = lambda: None,
        gone: Callable[[str], None] = lambda _uid: None,
    ) -> None:
        self.folder = folder
        self._changed = changed
        self._gone = gone
        self._job: TrainingJob | None = read_run(folder)
        self._pods: dict[str, LocalPod] = {}  # by name
        self._tokens: dict[str, str] = {}  # by pod uid
        self._tasks: set[asyncio.Task[None]] = set()
        self._events = Events(folder)
        self._url = ""
        self._agent = Path()
        self._gpus = gpus.inventory()
        self._start_lock = asyncio.Lock()
        self._retry: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None

    # What the engine asks.

    def job(self, key: Key) -> TrainingJob | None:
        """The job as last seen, None once it is gone."""
        return self._job if self._job is not None and self._job.key == key else None

    def pods(self, job_uid: str) -> tuple[Pod, ...]:
        """Every pod of the job."""
        ordered = sorted(self._pods.values(), key=lambda pod: (pod.record.index, pod.record.incarnation))
        return tuple(pod.view() for pod in ordered if pod.record.job_uid == job_uid)

    async def create_pod(self, job: TrainingJob, action: CreatePod) -> None:
        """Create a pod; one of that name is success, all pods here are the job's own."""
        if action.name in self._pods:
            return
        pod = LocalPod(
            self.folder.pods / action.name,
            PodRecord(
                uid=str(uuid.uuid4()),
                job_uid=job.metadata.uid,
                name=action.name,
                index=action.index,
                incarnation=action.incarnation,
                address=loopback_address(job.metadata.uid, action.index),
                created=time.time(),
                url=self._url,
            ),
        )
        pod.waiting = _BEING_STARTED
        self._pods[action.name] = pod
        self._begin(self._start_waiting())

    async def delete_pod(self, job: TrainingJob, action: DeletePod) -> None:  # noqa: ARG002 - one run, one job
        """Ask for deletion; a pod that is already gone, or another one by now, is success."""
        pod = self._pods.get(action.name)
        if pod is None or pod.record.uid != action.uid or pod.record.deletion is not None:
            return
        deletion = Deletion(since=time.time(), grace_seconds=action.grace_seconds)
        pod.record = msgspec.structs.replace(pod.record, deletion=deletion)
        self._begin(self._delete(pod))
        self._changed()

    async def write_status(self, job: TrainingJob, status: TrainingJobStatus) -> None:
        """Replace the status; it counts once it is on disk.

        Raises:
            Unavailable: it cannot be written, on a full disk for example.
        """
        if self._job is None or self._job.metadata.uid != job.metadata.uid:
            return
        written = msgspec.structs.replace(self._job, status=status)
        try:
            await asyncio.to_thread(write_status_file, self.folder, written)
        except OSError as error:
            self.trouble(f"{self.folder.status_file} cannot be written: {error.strerror}")
            raise Unavailable(f"{self.folder.status_file} cannot be written: {error}") from error
        if self._job is not None:  # it may have been edited or deleted meanwhile
            self._job = msgspec.structs.replace(self._job, status=status)
        self._changed()

    async def emit_event(self, job: TrainingJob, event: EmitEvent) -> None:  # noqa: ARG002 - one run, one job
        """Record an event on the job; one that cannot be written now is shown all the same, and written later."""
        await self._events.record(event)
        self._write_events_later()
        self._changed()

    async def delete_job(self, job: TrainingJob) -> None:
        """Delete the job; its folder goes when the controlling process lets go of it."""
        if self._job is not None and self._job.metadata.uid == job.metadata.uid:
            self._job = None
            self._changed()

    # What the laptop's wiring asks.

    @property
    def alive(self) -> bool:
        """Whether anything of any pod may live."""
        return any(not pod.over for pod in self._pods.values())

    @property
    def idle(self) -> bool:
        """Whether no pod lives and none is being started or deleted."""
        return not self.alive and not self._tasks

    async def authenticate(self, token: str) -> str | None:
        """The pod that this token speaks for."""
        given = token.encode()
        return next((uid for uid, known in self._tokens.items() if hmac.compare_digest(known.encode(), given)), None)

    def read_tokens(self) -> None:
        """Know the tokens of pods that may still run, before the first of them calls."""
        for path in self.folder.pods.glob("*/pod.json"):
            written = record.read(path, PodRecord)
            token = path.with_name("token")
            if written is not None and token.exists():
                self._tokens[written.uid] = token.read_text().strip()

    async def open(self, url: str) -> None:
        """Take up what a former controller left: adopt pods whose agents know this intake, end all others.

        Args:
            url: of the intake.

        Raises:
            ValueError: there is no agent to start pods with.
        """
        self._url = url
        for folder in (self.folder.pods, self.folder.checkpoints, self.folder.cache):
            folder.mkdir(parents=True, exist_ok=True)
        self._agent = await asyncio.to_thread(agent_zipapp, self.folder.home / "cache")
        await asyncio.gather(*map(self._take_up, sorted(self.folder.pods.glob("*/pod.json"))))

    def take_events(self) -> list[Event]:
        """The events recorded since the last call."""
        return self._events.take()

    def trouble(self, sentence: str) -> None:
        """Tell whoever watches what the run's folder refuses just now."""
        self._events.trouble(sentence)
        self._write_events_later()
        self._changed()

    def replace_job(self, job: TrainingJob) -> None:
        """The job was edited; its status stays the one written here."""
        if self._job is not None:
            self._job = msgspec.structs.replace(job, status=self._job.status)
            self._changed()

    async def kill_pods(self) -> None:
        """SIGKILL to everything; returns when nothing lives."""
        async with self._start_lock:
            pods = list(self._pods.values())
            for pod in pods:
                if pod.waiting is not None:
                    pod.waiting = None
                    pod.fail(KILLED, "PodLost", "The pod was ended before its processes were started.")
        await asyncio.gather(*(pod.kill() for pod in pods))
        await asyncio.gather(*(pod.wait() for pod in pods if pod.running is not None))
        self._changed()

    async def close(self) -> None:
        """Stop watching. Pods that live go on without us."""
        if self._retry is not None:
            self._retry.cancel()
        tasks = {*self._tasks, *([self._writing] if self._writing is not None else [])}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._events.flush()

    # One pod's life.

    async def _start_waiting(self) -> None:
        """Start the pods that wait, the whole gang or none: half gangs would wait for each other's GPUs for ever."""
        async with self._start_lock:
            job = self._job
            here = [pod for pod in self._pods.values() if not pod.over and pod.record.deletion is None]
            waiting = [pod for pod in here if pod.waiting is not None]
            if job is None or not waiting:
                return
            claimed: dict[str, int] = {}
            if job.spec.gpus_per_node:
                whole = {pod.record.index for pod in here} >= set(range(job.spec.nodes))
                folder = self.folder.home / "gpus"
                reason, claimed = gpus.claim(folder, job.spec, self._gpus, len(waiting) if whole else 0)
                if reason is not None or not whole:
                    for pod in waiting:
                        pod.waiting = reason or pod.waiting
                    self._try_again()
                    self._changed()
                    return
            devices = iter(claimed.items())
            shares = [dict(itertools.islice(devices, job.spec.gpus_per_node)) for _ in waiting]
            try:
                for pod, share in zip(waiting, shares, strict=True):
                    if pod.record.deletion is None:
                        try:
                            await self._start_processes(job, pod, share)
                        except Exception as error:  # noqa: BLE001 - whatever it is, the pod ends and says so
                            await pod.fail_to_start(error)
                        self._begin(self._watch(pod))
            finally:
                for descriptor in claimed.values():
                    os.close(descriptor)  # the keepers have their own
        self._changed()

    def _try_again(self) -> None:
        """Other runs free GPUs without a word to this one."""
        if self._retry is not None:
            self._retry.cancel()
        loop = asyncio.get_running_loop()
        self._retry = loop.call_later(RETRY_SECONDS, lambda: self._begin(self._start_waiting()))

    def _write_events_later(self) -> None:
        if self._events.unwritten and (self._writing is None or self._writing.done()):
            self._writing = asyncio.create_task(self._write_events())

    async def _write_events(self) -> None:
        while self._events.unwritten:
            await asyncio.sleep(RETRY_SECONDS)  # a disk that is full does not say when it is not
            await self._events.flush()
            self._changed()

    async def _start_processes(self, job: TrainingJob, pod: LocalPod, devices: dict[str, int]) -> None:
        pod.waiting = None
        pod.record = msgspec.structs.replace(pod.record, gpus=list(devices))
        script, self._tokens[pod.record.uid] = await asyncio.to_thread(pod.prepare, job)
        cwd = working_folder(job, self.folder)
        command = [sys.executable, str(self._agent), "--", *launch.worker_command(job.spec, script)]
        if not cwd.is_dir():
            raise ValueError(f"`spec.workingDir`: `{cwd}` is not a folder: create it or correct the path.")
        env = pod_environment(os.environ, job, pod.record, self.folder, len(os.sched_getaffinity(0)))
        await pod.start(command, env, cwd, devices)

    async def _delete(self, pod: LocalPod) -> None:
        deletion = pod.record.deletion
        assert deletion is not None
        # A start in progress comes to its end first, so that there is something to stop.
        async with self._start_lock:
            if pod.folder.exists():
                try:
                    await asyncio.to_thread(pod.write, pod.record)
                except OSError as error:  # only the next controller would need it
                    self.trouble(f"{pod.folder} cannot be written: {error.strerror}")
        await pod.stop(max(0.0, deletion.since + deletion.grace_seconds - time.time()))
        if pod.running is not None:
            await pod.wait()
        await asyncio.to_thread(pod.remove)
        await asyncio.to_thread(self._bound_logs)
        if self._pods.get(pod.record.name) is pod:
            del self._pods[pod.record.name]
        self._tokens.pop(pod.record.uid, None)
        self._gone(pod.record.uid)
        self._changed()
        await self._start_waiting()  # GPUs may be free now

    async def _take_up(self, path: Path) -> None:
        written = record.read(path, PodRecord)
        if written is None:
            await asyncio.to_thread(path.unlink)
            return
        pod = LocalPod(path.parent, written)
        job = self._job
        ours = job is not None and written.job_uid == job.metadata.uid
        if job is not None and ours and not pod.begun and not written.never_started and written.deletion is None:
            pod.record = msgspec.structs.replace(written, url=self._url)
            pod.waiting = _BEING_STARTED
            self._pods[written.name] = pod
            self._begin(self._start_waiting())
            return
        await pod.adopt()
        if pod.running is not None and not pod.over and (not ours or written.url != self._url):
            await pod.kill()
            await pod.wait()
            pod.fail(
                KILLED,
                "PodLost",
                f"The pod was ended: its agent calls {written.url}, which this controller cannot use.",
            )
        if not ours:
            pod.remove()
            return
        self._pods[written.name] = pod
        if written.deletion is not None:
            self._begin(self._delete(pod))
        elif not pod.over:
            self._begin(self._watch(pod))

    async def _watch(self, pod: LocalPod) -> None:
        await pod.wait()
        self._changed()

    def _bound_logs(self) -> None:
        """Folders of pods that are gone hold logs only; the newest are enough."""
        folders = [folder for folder in self.folder.pods.iterdir() if not (folder / "pod.json").exists()]
        live = {pod.folder for pod in self._pods.values()}
        folders = sorted((f for f in folders if f not in live), key=lambda folder: folder.stat().st_mtime_ns)
        for folder in folders[: max(0, len(folders) - MAX_LOG_FOLDERS)]:
            shutil.rmtree(folder, ignore_errors=True)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a pod is not looked after any more", "exception": error, "task": task}
            )
        self._changed()
