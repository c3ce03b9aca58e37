"""The pods of one run: created, started all or none, watched, deleted, and taken up from a former controller."""

import asyncio
import contextlib
import hmac
import itertools
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from torchyard.api import launch
from torchyard.api.files import read_regular
from torchyard.api.inputs import with_folders
from torchyard.api.reasons import Reason
from torchyard.api.resource import TrainingJob
from torchyard.local import gpus, record
from torchyard.local.environment import input_folder, pod_environment, working_folder
from torchyard.local.gang_share import GangShare
from torchyard.local.pod import KILLED, LocalPod
from torchyard.local.record import Deletion, PodRecord
from torchyard.local.run import RunFolder
from torchyard.local.template import Template
from torchyard.local.templates import Templates
from torchyard.local.zipapp import agent_zipapp
from torchyard.reconcile.actions import CreatePod, DeletePod
from torchyard.reconcile.observed import Pod

MAX_LOG_FOLDERS = 32
MAX_TOKEN_BYTES = 1024
RETRY_SECONDS = 2.0
_BEING_STARTED = ("", "the pod's processes are being started")


class LocalPods:
    """The pods of one run.

    Args:
        folder: of the run.
        job: the job as it is now, None once it is gone.
        changed: called when a pod changed.
        gone: called with the uid of a pod whose object is gone.
        trouble: called with a sentence about what the run's folder refuses.
        templates: of the process; without them, each pod imports torch itself.
        share: the part of the gang that is here.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        job: Callable[[], TrainingJob | None],
        changed: Callable[[], None],
        gone: Callable[[str], None],
        trouble: Callable[[str], None],
        templates: Templates | None = None,
        share: GangShare | None = None,
    ) -> None:
        self.by_name: dict[str, LocalPod] = {}
        self.gpus = gpus.inventory()
        self._folder = folder
        self._job, self._changed, self._gone, self._trouble = job, changed, gone, trouble
        self._templates = templates
        self._share = share or GangShare()
        self._tokens: dict[str, str] = {}  # by pod uid
        self._tasks: set[asyncio.Task[None]] = set()
        self._url = ""
        self._agent = Path()
        self._start_lock = asyncio.Lock()
        self._retry: asyncio.TimerHandle | None = None

    @property
    def alive(self) -> bool:
        """Whether anything of any pod may live."""
        return any(not pod.over for pod in self.by_name.values())

    @property
    def idle(self) -> bool:
        """Whether no pod lives and none is being started or deleted."""
        return not self.alive and not self._tasks

    def views(self, job_uid: str) -> tuple[Pod, ...]:
        """Return every pod of the job, as the plan sees it."""
        ordered = sorted(self.by_name.values(), key=lambda pod: (pod.record.index, pod.record.incarnation))
        return tuple(pod.view() for pod in ordered if pod.record.job_uid == job_uid)

    def create(self, job: TrainingJob, action: CreatePod, uid: str = "") -> None:
        """Create a pod and begin to start it; one of that name is success, all pods here are the job's own.

        Args:
            job: the job.
            action: name, index and incarnation of the pod.
            uid: of the pod; empty: a new one.
        """
        if action.name in self.by_name:
            return
        pod = LocalPod(
            self._folder.pods / action.name,
            PodRecord(
                uid=uid or str(uuid.uuid4()),
                job_uid=job.metadata.uid,
                name=action.name,
                index=action.index,
                incarnation=action.incarnation,
                address=self._share.address_of(job.metadata.uid, action.index),
                created=time.time(),
                url=self._url,
            ),
            self._share.node_of(action.index),
        )
        pod.waiting = _BEING_STARTED
        self.by_name[action.name] = pod
        self._begin(self.start_waiting())

    def delete(self, action: DeletePod) -> None:
        """Ask for deletion; a pod that is already gone, or another one by now, is success."""
        pod = self.by_name.get(action.name)
        if pod is None or pod.record.uid != action.uid or pod.record.deletion is not None:
            return
        deletion = Deletion(since=time.time(), grace_seconds=action.grace_seconds)
        pod.record = msgspec.structs.replace(pod.record, deletion=deletion)
        self._begin(self._delete(pod))
        self._changed()

    def token_owner(self, token: str) -> str | None:
        """Return the pod that this token speaks for."""
        given = token.encode()
        return next((uid for uid, known in self._tokens.items() if hmac.compare_digest(known.encode(), given)), None)

    @property
    def tokens(self) -> Mapping[str, str]:
        """Return the token of each pod, by the pod's uid."""
        return self._tokens

    def read_tokens(self) -> None:
        """Load the tokens of pods that may still run, before the first of them calls."""
        for path in self._folder.pods.glob("*/pod.json"):
            written = record.read(path, PodRecord)
            token = path.with_name("token")
            if written is not None:
                with contextlib.suppress(OSError, UnicodeDecodeError):
                    self._tokens[written.uid] = read_regular(token, MAX_TOKEN_BYTES).decode().strip()

    async def open(self, url: str) -> None:
        """Take up what a former controller left: adopt pods whose agents know this intake, end all others.

        Args:
            url: of the intake.

        Raises:
            ValueError: there is no agent to start pods with.
        """
        self._url = url
        self._agent = await asyncio.to_thread(agent_zipapp, self._folder.home / "cache")
        await asyncio.gather(*map(self._take_up, sorted(self._folder.pods.glob("*/pod.json"))))

    async def kill(self) -> None:
        """Kill everything with SIGKILL; return when nothing lives."""
        async with self._start_lock:
            pods = list(self.by_name.values())
            for pod in pods:
                if pod.waiting is not None:
                    pod.waiting = None
                    pod.fail(KILLED, Reason.POD_LOST, "The pod was ended before its processes were started.")
        await asyncio.gather(*(pod.kill() for pod in pods))
        await asyncio.gather(*(pod.wait() for pod in pods if pod.running is not None))
        self._changed()

    async def close(self) -> None:
        """Stop watching. Pods that live go on without us."""
        if self._retry is not None:
            self._retry.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # One pod's life.

    async def start_waiting(self) -> None:
        """Start the pods that wait, the whole gang or none: half gangs would wait for each other's GPUs for ever."""
        template = await self._template()  # without the lock: what is asked to stop while torch is imported does
        async with self._start_lock:
            job = self._filled_job()
            here = [pod for pod in self.by_name.values() if not pod.over and pod.record.deletion is None]
            waiting = [pod for pod in here if pod.waiting is not None]
            if job is None or not waiting:
                return
            claimed: dict[str, int] = {}
            if job.spec.gpus_per_node:
                indices = self._share.pods(job)
                whole = {pod.record.index for pod in here} >= set(indices)
                folder = self._folder.home / "gpus"
                part = msgspec.structs.replace(job.spec, nodes=len(indices))
                reason, claimed = gpus.claim(folder, part, self.gpus, len(waiting) if whole else 0)
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
                            await self._start_processes(job, pod, share, template)
                        except Exception as error:  # noqa: BLE001 - whatever it is, the pod ends and says so
                            await pod.fail_to_start(error)
                        self._begin(self._watch(pod))
            finally:
                for descriptor in claimed.values():
                    os.close(descriptor)  # the keepers have their own
        self._changed()

    def _try_again(self) -> None:
        """Try again later: other runs free GPUs without notifying this one."""
        if self._retry is not None:
            self._retry.cancel()
        loop = asyncio.get_running_loop()
        self._retry = loop.call_later(RETRY_SECONDS, lambda: self._begin(self.start_waiting()))

    async def _template(self) -> Template | None:
        """Return what the waiting pods are to be forked from, once it has imported torch; None: nothing."""
        job = self._filled_job()
        waiting = [pod for pod in self.by_name.values() if pod.waiting is not None]
        if self._templates is None or job is None or not waiting:
            return None
        try:
            command = launch.worker_command(job.spec, "script.py")
            env, cwd = self._environment(job, waiting[0].record), working_folder(job, self._folder)
            return await self._templates.of(job, self._agent, command, env, cwd)
        except ValueError:
            return None  # the start of the pod says what is wrong

    def _filled_job(self) -> TrainingJob | None:
        """Return the job with the folders of its inputs on this machine."""
        job = self._job()
        return with_folders(job, partial(input_folder, self._folder)) if job is not None and job.spec.inputs else job

    def _environment(self, job: TrainingJob, pod: PodRecord) -> dict[str, str]:
        cores = len(os.sched_getaffinity(0))
        return pod_environment(os.environ, job, pod, self._folder, cores, share=self._share)

    async def _start_processes(
        self, job: TrainingJob, pod: LocalPod, devices: dict[str, int], template: Template | None
    ) -> None:
        pod.waiting = None
        pod.record = msgspec.structs.replace(pod.record, gpus=list(devices))
        script, self._tokens[pod.record.uid] = await asyncio.to_thread(pod.prepare, job, self._share.runs)
        cwd = working_folder(job, self._folder)
        command = [sys.executable, str(self._agent), "--", *launch.worker_command(job.spec, script)]
        if not cwd.is_dir():
            raise ValueError(f"`spec.workingDir`: `{cwd}` is not a folder: create it or correct the path.")
        await pod.start(command, self._environment(job, pod.record), cwd, devices, template)

    async def _delete(self, pod: LocalPod) -> None:
        deletion = pod.record.deletion
        assert deletion is not None
        # A start in progress comes to its end first, so that there is something to stop.
        async with self._start_lock:
            if pod.folder.exists():
                try:
                    await asyncio.to_thread(pod.write, pod.record)
                except OSError as error:  # only the next controller would need it
                    self._trouble(f"{pod.folder} cannot be written: {error.strerror}")
        await pod.stop(max(0.0, deletion.since + deletion.grace_seconds - time.time()))
        if pod.running is not None:
            await pod.wait()
        await asyncio.to_thread(pod.remove)
        await asyncio.to_thread(self._bound_logs)
        if self.by_name.get(pod.record.name) is pod:
            del self.by_name[pod.record.name]
        self._tokens.pop(pod.record.uid, None)
        self._gone(pod.record.uid)
        self._changed()
        await self.start_waiting()  # GPUs may be free now

    async def _take_up(self, path: Path) -> None:
        written = record.read(path, PodRecord)
        if written is None:
            await asyncio.to_thread(path.unlink)
            return
        pod = LocalPod(path.parent, written, self._share.node_of(written.index))
        job = self._job()
        ours = job is not None and written.job_uid == job.metadata.uid
        if job is not None and ours and not pod.begun and not written.never_started and written.deletion is None:
            pod.record = msgspec.structs.replace(written, url=self._url)
            pod.waiting = _BEING_STARTED
            self.by_name[written.name] = pod
            self._begin(self.start_waiting())
            return
        await pod.adopt()
        if pod.running is not None and not pod.over and (not ours or written.url != self._url):
            await pod.kill()
            await pod.wait()
            pod.fail(
                KILLED,
                Reason.POD_LOST,
                f"The pod was ended: its agent calls {written.url}, which this controller cannot use.",
            )
        if not ours:
            pod.remove()
            return
        self.by_name[written.name] = pod
        if written.deletion is not None:
            self._begin(self._delete(pod))
        elif not pod.over:
            self._begin(self._watch(pod))

    async def _watch(self, pod: LocalPod) -> None:
        await pod.wait()
        self._changed()

    def _bound_logs(self) -> None:
        """Delete the oldest folders of pods that are gone: they hold only logs."""
        folders = [folder for folder in self._folder.pods.iterdir() if not (folder / "pod.json").exists()]
        live = {pod.folder for pod in self.by_name.values()}
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
                {"message": "a pod is not watched any more", "exception": error, "task": task}
            )
        self._changed()
