"""Jobs in Python: start, watch, read, stop. Coroutines; `torchyard.client.sync` has the same without `await`."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torchyard.api.backends import ignored
from torchyard.api.formatting import addressed, clean
from torchyard.api.names import OF_THIS_MACHINE, OF_TRIALS
from torchyard.api.resource import TrainingJob, job_document
from torchyard.api.status import State, TrainingJobStatus
from torchyard.client.artifacts import MAX_SIZE, Artifact, bring
from torchyard.client.backend import Away, Backend, Kept, LogLine, Unreadable, logged
from torchyard.client.diff import Comparison, compare, sides
from torchyard.client.errors import JobFailedError, NotFoundError, TorchYardError
from torchyard.client.explanation import Explanation, last_lines
from torchyard.client.location import HERE, Location, location_of, opened
from torchyard.client.metrics import FILE, MetricsTable, table_of
from torchyard.client.metrics import MAX_SIZE as MAX_METRICS
from torchyard.client.request import Arguments, Target, requested
from torchyard.local.run import Event, run_folder

if TYPE_CHECKING:
    from torchyard.client.bundle.attach import Packed

STOPPING_SECONDS = 0.1
OF_USERS = ("name", "namespace", "labels", "annotations")
"""Metadata that a job is created with; a file of `kubectl get -o yaml` also has what the server set."""


class Job:
    """One job, on this machine or on a cluster. Every method asks again; nothing is cached.

    Attributes:
        name: of the job.
        uid: of the job; another job that takes its name later is not this one.
        namespace: of a job on a cluster; None: the job is on this machine.
    """

    def __init__(self, name: str, uid: str, location: Location = HERE) -> None:
        self.name = name
        self.uid = uid
        self.location = location

    @property
    def namespace(self) -> str | None:
        """Namespace of a job on a cluster."""
        return self.location.namespace

    def __repr__(self) -> str:
        return f"<torchyard job {self.name} on {'this machine' if self.location.kind == 'local' else 'a cluster'}>"

    async def manifest(self) -> dict[str, Any]:
        """Return the whole object as `-o json` prints it.

        Raises:
            NotFoundError: the job was deleted.
        """
        return (await self._kept()).document

    async def status(self) -> TrainingJobStatus:
        """Return the current status. Raises the same errors as `manifest`."""
        return (await self._kept()).job.status

    async def watch(self) -> AsyncIterator[TrainingJobStatus]:
        """Yield the status now and at each change, until the job is over or deleted.

        If the API server does not answer for a while, it is retried.
        """
        async for job in self._states():
            yield job.status

    async def wait(self, *, timeout: float | None = None, check: bool = True) -> TrainingJobStatus:  # noqa: ASYNC109
        """Wait until the job has succeeded, failed or is suspended; return its last status.

        Args:
            timeout: seconds after which to raise `TimeoutError`; the job continues.
            check: raise `JobFailedError` if the job failed.

        Raises:
            JobFailedError: the job failed.
            NotFoundError: the job was deleted.
            TimeoutError: the timeout has expired.
            TorchYardError: no process controls the run any more.
        """
        async with asyncio.timeout(timeout):
            job = await self._ended()
        if check and job.status.state == State.FAILED:
            flags = await self._flags()
            lines = "\n".join([f"{self.name} failed: {addressed(clean(job.status.message), self.name, flags)}",
                               *last_lines(job)])  # fmt: skip
            raise JobFailedError(lines, f"`torchyard explain {self.name}{flags}`", job.status)
        return job.status

    async def why(self) -> Explanation:
        """Explain the job's state: the cause, what to do, failures, pods, events."""
        async with self._backend() as backend:
            await self._same(backend)
            return await backend.explain(self.name)

    async def events(self) -> list[Event]:
        """Return the events of the job, oldest first."""
        async with self._backend() as backend:
            await self._same(backend)
            return await backend.events(self.name)

    async def logs(
        self, rank: int | Literal["all"] = "all", *, follow: bool = False, tail: int | None = None
    ) -> AsyncIterator[LogLine]:
        """Yield the output of the ranks, starting with the rank that failed first.

        Args:
            rank: only this one.
            follow: wait for new lines until the job is over, through new rounds and pods.
            tail: only this many of the last lines of each rank.
        """
        if not (rank == "all" or (isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0)):
            raise TorchYardError(f"rank {rank!r} is not possible", 'use a number from 0 on, or "all"')
        if not (tail is None or (isinstance(tail, int) and tail >= 0)):
            raise TorchYardError(f"tail {tail!r} is not possible", "use a number from 0 on")
        async with self._backend() as backend:
            await self._same(backend)
            only = None if rank == "all" else rank
            async for line in backend.logs(self.name, self.uid, rank=only, follow=follow, tail=tail):
                yield line

    async def metrics(self) -> MetricsTable:
        """Return the logged metrics: a list of rows by step. `status.metrics` has the newest values.

        Raises:
            TorchYardError: on a cluster: no pod sees the checkpoint folder.
        """
        if self.location.kind == "local":
            await self._kept()
            return await asyncio.to_thread(table_of, run_folder(self.name).checkpoints / FILE)
        async with self._backend() as backend:
            await self._same(backend)
            with tempfile.TemporaryDirectory(prefix="torchyard-") as folder:
                found = Path(folder) / FILE
                await bring(backend.fetch, self.name, FILE, found, max_size=MAX_METRICS)
                return await asyncio.to_thread(table_of, found)

    async def artifacts(self) -> list[Artifact]:
        """Return the files in the checkpoint folder that can be fetched: exports, final weights, curves."""
        async with self._backend() as backend:
            await self._same(backend)
            return await backend.artifacts(self.name)

    async def fetch(
        self, path: str, to: str | Path | None = None, *, replace: bool = False, max_size: str = MAX_SIZE
    ) -> Path:
        """Copy a file or folder from the checkpoint folder to this machine; return its path.

        Args:
            path: of an artifact: `export/web`, `final`, `metrics.jsonl`.
            to: by default its own name in the current folder.
            replace: overwrite an existing file or folder.
            max_size: limit on the bytes that pods send, such as `10Gi`.
        """
        async with self._backend() as backend:
            await self._same(backend)
            target = Path(to) if to is not None else None
            return await bring(backend.fetch, self.name, path, target, replace=replace, max_size=max_size)

    async def stop(self, *, wait: bool = True) -> TrainingJobStatus:
        """Save a checkpoint and stop; `resume` continues from it. Does nothing if the job is over.

        Args:
            wait: return only after the job has stopped.
        """
        job = (await self._kept()).job
        if job.status.state.terminal:
            return job.status
        if self.location.kind == "local":
            from torchyard.client.stopping import stop_run

            return (await stop_run(self.name, wait=wait)).job.status
        async with self._backend() as backend:
            job = (await backend.suspend(self.name)).job
        return (await self._ended()).status if wait else job.status

    async def scale(self, nodes: int) -> None:
        """Change the number of nodes that the gang wants, within `spec.elastic`; a suspended job may get any.

        Raises:
            TorchYardError: the job is over, not elastic, or the number is out of bounds.
        """
        from torchyard.client.scaling import require_scalable

        async with self._backend() as backend:
            require_scalable((await self._kept()).job, nodes, backend.flags)
            await backend.scale(self.name, nodes)

    async def resume(self) -> None:
        """Continue from the newest checkpoint. This process then controls a run on this machine.

        Raises:
            TorchYardError: the job has failed, or another process controls the run.
        """
        kept = await self._kept()
        job = kept.job
        if job.status.state.terminal:
            resumable = job.status.state == State.FAILED and job.spec.trainer is not None
            fix = "start it under another name with checkpoint.resumeFrom" if resumable else ""
            raise TorchYardError(f"{self.name} has already {job.status.state.lower()}", fix)
        if self.location.kind == "local":
            from torchyard.client.controlled import control
            from torchyard.client.start import require_gpus

            if kept.controlled:
                raise TorchYardError(f"the run {self.name!r} is controlled by a process already", "wait for its end")
            require_gpus(job)
        async with self._backend() as backend:
            await backend.resume(self.name)
        if self.location.kind == "local":
            control(run_folder(self.name))

    async def delete(self) -> None:
        """Delete the job with its pods; on this machine with its logs and checkpoints."""
        async with self._backend() as backend:
            await self._same(backend)
            if self.location.kind == "local":
                await asyncio.to_thread(asyncio.run, backend.delete(self.name))  # it waits for processes to end
            else:
                await backend.delete(self.name)

    def _backend(self) -> AbstractAsyncContextManager[Backend]:
        return opened(self.location)

    async def _flags(self) -> str:
        from torchyard.client.backend import location_flags

        return location_flags(self.location.context, self.location.namespace) if self.location.kind == "cluster" else ""

    async def _kept(self) -> Kept:
        async with self._backend() as backend:
            return await self._same(backend)

    async def _same(self, backend: Backend) -> Kept:
        kept = await backend.get(self.name)
        if kept.job.metadata.uid != self.uid:
            raise NotFoundError(f"the job {self.name!r} was deleted, and another one has its name now")
        return kept

    async def _states(self) -> AsyncIterator[TrainingJob]:
        """Yield the job at each change until it is over; end if it is deleted."""
        async with self._backend() as backend:
            before = None
            try:
                async for seen in backend.states(self.name, self.uid):
                    if seen is None:
                        return
                    if isinstance(seen, Away) or seen == before:
                        continue
                    before = seen
                    yield seen
                    if seen.is_over:
                        return
            except TorchYardError:
                if self.location.kind == "local":
                    from torchyard.client.controlled import failed_here

                    if (cause := failed_here(run_folder(self.name))) is not None:
                        raise cause from None
                raise

    async def _ended(self) -> TrainingJob:
        """Wait for the end; errors of a control in this process are raised."""
        if self.location.kind == "local":
            from torchyard.client.controlled import controlled_here

            here = controlled_here(run_folder(self.name))
            if here is not None:
                await here.until_over()
        last = None
        async for job in self._states():
            last = job
        if last is None or not last.is_over:
            raise NotFoundError(f"the job {self.name!r} was deleted before it was over")
        return last


async def run(
    target: Target,
    *,
    name: str | None = None,
    arguments: Arguments | None = None,
    overrides: Mapping[str, Any] | None = None,
    code: str | Path | None = None,
    wait: bool = True,
    check: bool = True,
) -> Job:
    """Run a job on this machine, as `torchyard run` does: without Kubernetes, with the same restarts and checkpoints.

    An unfinished run with the same name and spec continues; a finished one starts over. If this call is cancelled, the
    run is saved and stopped before `CancelledError` is raised, which takes at most its grace period; a second
    cancellation does not wait for that. A run that still runs when the process ends is saved and stopped, too.

    Args:
        target: a TrainingJob, a dict, the path of a job file or of a Python script (`train.py`, started with
            torchrun), or a function decorated with `torchyard.job`.
        name: of the run; by default the job's name.
        arguments: for a decorated function, JSON values by name; for a script, a list such as `["--lr", "1e-3"]`.
        overrides: fields of the spec to change before: `{"nodes": 2, "trainer.params.steps": 100}`.
        code: folder whose files travel with the job: the program runs from a copy, found by its digest.
        wait: return only when the run is over; False: the run continues in the background.
        check: raise `JobFailedError` if the run fails.

    Raises:
        InvalidJobError: the job is invalid; the error lists all problems.
        JobFailedError: the job failed.
        TorchYardError: the name is in use, or this machine has too few GPUs.
    """
    from torchyard.client.controlled import control
    from torchyard.client.start import start

    wanted = await asyncio.to_thread(
        requested, target, "local", name=name, overrides=overrides, arguments=arguments, code=code
    )
    folder = await asyncio.to_thread(start, wanted, name)
    controlling = control(folder)
    try:
        async with opened(HERE) as backend:
            kept = await backend.get(folder.name)
        made = Job(folder.name, kept.job.metadata.uid)
        if not wait:
            return made
        await controlling.until_over()
    except asyncio.CancelledError:
        logged(f"the run {folder.name!r} saves and stops; a second Ctrl-C or cancellation does not wait for that")
        await controlling.stopped()
        raise
    await made.wait(check=check)
    return made


async def submit(
    target: Target,
    *,
    name: str | None = None,
    arguments: Arguments | None = None,
    overrides: Mapping[str, Any] | None = None,
    code: str | Path | None = None,
    context: str | None = None,
    namespace: str | None = None,
) -> Job:
    """Submit a job to a cluster and return at once; use `wait` of the returned job to wait for its end.

    Args:
        target: a TrainingJob, a dict, the path of a job file or of a Python script (`train.py`, started with
            torchrun), or a function decorated with `torchyard.job`.
        name: of the job; by default the name in its metadata.
        arguments: for a decorated function, JSON values by name; for a script, a list such as `["--lr", "1e-3"]`.
        overrides: fields of the spec to change before.
        code: folder whose files travel with the job.
        context: context of the kubeconfig; by default the current one.
        namespace: by default the namespace of the job, else that of the context.

    Raises:
        InvalidJobError: the job is invalid; the error lists all problems.
        TorchYardError: the API server does not answer or rejects the job, or a job with this name exists.
    """
    wanted = await asyncio.to_thread(
        requested, target, "cluster", name=name, overrides=overrides, arguments=arguments, code=code
    )
    from torchyard.client.bundle.attach import packed

    sent = await asyncio.to_thread(packed, wanted.job, wanted.folder, logged)
    document = creatable(wanted.job if sent is None else sent.job, wanted.source, namespace)
    if unused := ignored(wanted.job.spec, "cluster"):
        logged(f"a cluster has no use for {', '.join(unused)}; ignored")
    location = Location("cluster", context, namespace or document["metadata"].get("namespace"))
    kept = await create(location, document, sent)
    metadata = kept.job.metadata
    return Job(metadata.name, metadata.uid, location._replace(namespace=metadata.namespace))


def creatable(job: TrainingJob, source: str, namespace: str | None) -> dict[str, Any]:
    """Return the object of a job without what an API server set.

    Raises:
        TorchYardError: it is for another namespace.
    """
    document = job_document(job, with_status=False)
    document["metadata"] = metadata_of_users(document["metadata"])
    given = document["metadata"].get("namespace")
    if given and namespace and given != namespace:
        raise TorchYardError(f"{source} is for namespace {given!r}, not {namespace!r}", "leave one of them out")
    return document


def metadata_of_users(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata as an object is created with it, without what an API server, a sweep or this machine set."""
    kept = {field: value for field, value in metadata.items() if field in OF_USERS}
    for field in {"labels", "annotations"} & kept.keys():
        kept[field] = {key: text for key, text in kept[field].items() if key not in (*OF_TRIALS, *OF_THIS_MACHINE)}
    return {field: value for field, value in kept.items() if value}


async def create(location: Location, document: dict[str, Any], code: "Packed | None" = None) -> Kept:
    """Create a job on a cluster, and send its code.

    Raises:
        TorchYardError: there is one of that name.
    """
    from torchyard.client.cluster import ClusterBackend

    async with opened(location) as backend:
        assert isinstance(backend, ClusterBackend)
        return await backend.create(document, code)


async def get_job(name: str, *, context: str | None = None, namespace: str | None = None) -> Job:
    """Return a job by its name: the run on this machine if there is one, else the job on the cluster.

    Args:
        name: of the job.
        context: context of the kubeconfig; if set, only the cluster is searched.
        namespace: if set, only the cluster is searched.

    Raises:
        NotFoundError: it does not exist.
    """
    location = location_of(name, context, namespace)
    async with opened(location) as backend:
        return _job(await backend.get(name), location)


async def jobs(*, context: str | None = None, namespace: str | None = None, all_namespaces: bool = False) -> list[Job]:
    """Return the jobs, newest first: the runs on this machine or, if there are none, the jobs of the cluster.

    Args:
        context: context of the kubeconfig; if set, list the jobs of the cluster.
        namespace: if set, list the jobs of the cluster.
        all_namespaces: list the jobs of all namespaces of the cluster.
    """
    location = Location("cluster", context, namespace) if all_namespaces else location_of(None, context, namespace)
    async with opened(location) as backend:
        found = await backend.jobs(everywhere=all_namespaces)
    for each in found:
        if isinstance(each, Unreadable):
            logged(f"run {each.name}: {each.sentence}")
    return [_job(each, location) for each in found if isinstance(each, Kept)]


async def diff(
    left: str | Job, right: str | Job, *, context: str | None = None, namespace: str | None = None
) -> Comparison:
    """Compare two jobs: specification, code, packages, machine, result and final metrics.

    Args:
        left: a job, or the name of one.
        right: the job to compare it with.
        context: context of the kubeconfig; if set, the jobs are on the cluster.
        namespace: if set, the jobs are on the cluster.

    Raises:
        NotFoundError: one of the jobs does not exist.
    """
    (one, here), (two, there) = (
        (each.name, each.location) if isinstance(each, Job) else (each, location_of(each, context, namespace))
        for each in (left, right)
    )
    async with opened(here) as backend, opened(there) as other:
        return compare(*await sides(one, backend, two, other))


def _job(kept: Kept, location: Location) -> Job:
    metadata = kept.job.metadata
    return Job(
        metadata.name, metadata.uid, location if location == HERE else location._replace(namespace=metadata.namespace)
    )
