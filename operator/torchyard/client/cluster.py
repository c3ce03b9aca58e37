"""The TrainingJobs of a namespace as a backend."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from torchyard.api.launch import checkpoint_claim
from torchyard.api.resource import TrainingJob
from torchyard.client import failed_rounds
from torchyard.client.artifacts import Allowance, Artifact
from torchyard.client.backend import MAX_RECORD, RECORD, Document, Kept, LogLine, Notice, States, Unreadable, logged
from torchyard.client.bundle.attach import Packed
from torchyard.client.bundle.bundle import Bundle
from torchyard.client.curves import Curves, Scale, of_status
from torchyard.client.errors import FAILED, TorchYardError
from torchyard.client.explanation import Explanation, explanation
from torchyard.client.job_details import JobDetails
from torchyard.client.plans.cluster_plan import ClusterPlan, cluster_plan
from torchyard.client.ranks import RankStacks
from torchyard.client.remote import cluster_view, curves, logs, profile, stacks, watch
from torchyard.client.remote import fetch as remote_fetch
from torchyard.client.remote import jobs as remote_jobs
from torchyard.client.remote import replace as remote_replace
from torchyard.client.remote.code_upload import announce, owner_of, upload
from torchyard.client.remote.served import require_served
from torchyard.client.remote.session import Remote, translated
from torchyard.client.summaries import Summary, summary_of
from torchyard.kubernetes.client.errors import AlreadyExists, NotFound, Rejected
from torchyard.local.run import Event
from torchyard.reconcile.code import missing_code

T = TypeVar("T")


class ClusterBackend:
    """A namespace of a cluster, over an open connection."""

    def __init__(self, remote: Remote, notice: Notice = logged) -> None:
        self.remote = remote
        self.where, self.cluster = remote.where, remote.context
        self.flags = remote.flags
        self._notice = notice

    async def get(self, name: str) -> Kept:
        """Return a job."""
        return _kept(await remote_jobs.get(self.remote, name))

    async def inspect(self, name: str) -> tuple[Kept, JobDetails]:
        """Return a job and its pods."""
        kept = await self.get(name)
        return kept, JobDetails(pods=await remote_jobs.pods(self.remote, kept.job))

    async def jobs(self, *, everywhere: bool = False) -> list[Kept | Unreadable]:
        """Return the jobs of the namespace, or of all, newest first."""
        documents = await remote_jobs.get_all(self.remote, everywhere=everywhere)
        documents.sort(key=lambda document: document["metadata"].get("creationTimestamp", ""), reverse=True)
        return [_kept(document) for document in documents]

    async def summaries(self, *, everywhere: bool = False) -> list[Summary | Unreadable]:
        """Return what a list shows of the jobs, newest first."""
        found = await self.jobs(everywhere=everywhere)
        return [
            each if isinstance(each, Unreadable) else summary_of(each.job, controlled=each.controlled) for each in found
        ]

    async def create(self, document: Document, code: Packed | None = None) -> Kept:
        """Create a job, then send its code, for which its pods wait.

        Raises:
            TorchYardError: there is one of this name.
        """
        if code is not None:
            await require_served(self.remote, code.job)
        body = {**document, "metadata": {**document["metadata"], "namespace": self.remote.namespace}}
        try:
            created = await remote_jobs.create(self.remote, body)
        except AlreadyExists as error:
            name = document["metadata"]["name"]
            bundle = code.bundle if code is not None else None
            if code is not None and bundle is not None:
                waiting = await self._waiting_for(name, bundle)
                if waiting is not None:
                    self._notice(f"torchyard: {name} waits for this code, which is sent now")
                    return _kept(await self._send(waiting, bundle, code.parts))
            fix = f"`torchyard delete {name}{self.flags}` first, or give this one another --name"
            raise TorchYardError(f"there is a TrainingJob {name!r} in {self.where} already", fix) from error
        return _kept(
            created if code is None or code.bundle is None else await self._send(created, code.bundle, code.parts)
        )

    async def replace(self, document: Document, job: TrainingJob, code: Packed | None = None) -> Kept:
        """Create a job, or turn the one of its name into it; one that has ended is deleted first.

        Args:
            document: the job as it is created.
            job: the same.
            code: that travels with it.

        Raises:
            TorchYardError: fields differ that never change.
        """
        name = document["metadata"]["name"]
        try:
            stored = await remote_jobs.get(self.remote, name)
        except NotFound:
            return await self.create(document, code)
        status = remote_jobs.typed(stored).status
        if "deletionTimestamp" not in stored["metadata"] and not status.state.terminal:
            if code is not None:
                await require_served(self.remote, code.job)
            sent = code if code is not None and code.bundle is not None else None
            return _kept(await remote_replace.replace(self.remote, stored, job, sent, self._notice))
        if status.state.terminal:
            self._notice(f"torchyard: {name} is over ({status.state}): it is deleted and starts over")
            await remote_jobs.delete(self.remote, name)
        async for seen in watch.states(self.remote, name, stored["metadata"]["uid"]):
            if seen is None:
                break
        return await self.create(document, code)

    async def _waiting_for(self, name: str, bundle: Bundle) -> Document | None:
        """Return a job whose submission ended before all of this code was sent; None: it does not wait for it."""
        stored = await remote_jobs.get(self.remote, name)
        job = remote_jobs.typed(stored)
        same = job.spec.code is not None and job.spec.code.digest == bundle.digest
        return stored if same and missing_code(job) and not job.status.state.terminal else None

    async def _send(self, job: Document, bundle: Bundle, parts: Sequence[bytes]) -> Document:
        name = job["metadata"]["name"]
        path = remote_jobs.job_path(self.remote, name)
        try:
            await upload(self.remote, owner_of(job), bundle.digest, parts)
        except Rejected as error:
            what = f"the job {name!r} waits for its code, which the API server rejects: {error.message}"
            fix = f"ask for the right to create and patch configmaps in {self.where}; `torchyard rm {name}{self.flags}`"
            raise TorchYardError(what, fix, FAILED) from error
        document: Document = msgspec.json.decode(await announce(self.remote, path, bundle.digest))
        return document

    async def plan(self, job: TrainingJob, document: Document) -> ClusterPlan:
        """Return what the cluster would do with a job, as far as the user may read it."""
        with translated(self.remote):
            known = await cluster_view.read(self.remote, job, document)
        return cluster_plan(job, known, time.time())

    async def states(self, name: str, uid: str = "", *, until_deleted: bool = False) -> States:  # noqa: ARG002
        """Yield a job at each of its changes, `Away` while the API server does not answer, None once it is gone."""
        with translated(self.remote):
            async for seen in watch.states(self.remote, name, uid):
                yield seen

    async def events(self, name: str) -> list[Event]:
        """Return the events of a job, oldest first."""
        with translated(self.remote):
            return await remote_jobs.events(self.remote, (await self.get(name)).job)

    async def logs(
        self,
        name: str,
        uid: str = "",
        *,
        rank: int | None = None,
        follow: bool = False,
        tail: int | None = None,
        round_number: int | None = None,
    ) -> AsyncIterator[LogLine]:
        """Yield the logs of the pods that still exist, or what is kept of one failed round."""
        if round_number is not None:
            for line in await self._of_failed_round(name, round_number, rank, tail):
                yield line
            return
        with translated(self.remote):
            async for line in logs.read(self.remote, name, self._notice, uid, rank=rank, follow=follow, tail=tail):
                yield line

    async def _of_failed_round(self, name: str, round_number: int, rank: int | None, tail: int | None) -> list[LogLine]:
        job = (await self.get(name)).job
        with tempfile.TemporaryDirectory(prefix="torchyard-") as folder:
            kept = Path(folder) / "round"
            allowance = Allowance(failed_rounds.MOST_BYTES, "32Mi")
            failed_rounds.require(job, round_number)
            if checkpoint_claim(job.spec) is not None:
                try:
                    await remote_fetch.fetch(self.remote, name, failed_rounds.output(round_number), kept, allowance)
                except TorchYardError as error:
                    self._notice(f"{name}: the output of round {round_number} beside its checkpoints: {error}")
            return list(failed_rounds.lines(job, round_number, kept, self._notice, rank=rank, tail=tail))

    async def explain(self, name: str) -> Explanation:
        """Explain a job's state."""
        job = (await self.get(name)).job
        pods, events = await asyncio.gather(remote_jobs.pods(self.remote, job), remote_jobs.events(self.remote, job))
        return explanation(job, pods, events, f"in {self.where}", self.flags, time.time())

    async def suspend(self, name: str) -> Kept:
        """Request a checkpoint and the end of the pods."""
        return _kept(await remote_jobs.set_suspend(self.remote, name, suspend=True))

    async def resume(self, name: str) -> Kept:
        """Undo `suspend`."""
        return _kept(await remote_jobs.set_suspend(self.remote, name, suspend=False))

    async def scale(self, name: str, nodes: int) -> Kept:
        """Set `spec.nodes`."""
        return _kept(await remote_jobs.set_nodes(self.remote, name, nodes))

    async def delete(self, name: str) -> None:
        """Delete a job; its pods go with it, checkpoints on a claim stay."""
        await remote_jobs.delete(self.remote, name)

    async def environment(self, name: str) -> bytes | None:
        """Return the recorded environment of a job, read through a pod that has access to the checkpoint folder."""
        with tempfile.TemporaryDirectory(prefix="torchyard-") as folder:
            found = Path(folder) / RECORD
            await remote_fetch.fetch(self.remote, name, Path(RECORD), found, Allowance(MAX_RECORD, "1Mi"))
            return await asyncio.to_thread(found.read_bytes)

    async def artifacts(self, name: str) -> list[Artifact]:
        """Return the artifacts of the job, read through its pods."""
        return await remote_fetch.contents(self.remote, name)

    async def fetch(self, name: str, wanted: Path, to: Path, allowance: Allowance) -> None:
        """Fetch a file or folder from the checkpoint folder."""
        await remote_fetch.fetch(self.remote, name, wanted, to, allowance)

    async def curves(self, name: str, wanted: Iterable[str] | None = None, scale: Scale = "overview") -> Curves:
        """Return the curves of a job: from a running pod, a copy on this machine, or the status."""
        with translated(self.remote):
            return await curves.curves(self.remote, name, wanted, scale)

    async def stacks(self, name: str) -> list[RankStacks]:
        """Ask the agents of the job's pods."""
        return await stacks.stacks_of(self.remote, name)

    async def profile(self, name: str, wish: str, *, replace: bool) -> int:
        """Write the request into every running pod."""
        return await profile.ask_for_profile(self.remote, name, wish, replace=replace)


class ReadingBackend(ClusterBackend):
    """A namespace of a cluster as a user of the page there: what the user may not read beside a job is left out."""

    async def inspect(self, name: str) -> tuple[Kept, JobDetails]:
        """Return a job and those of its pods that the user may see."""
        kept = await self.get(name)
        return kept, JobDetails(pods=await _permitted(remote_jobs.pods(self.remote, kept.job)))

    async def events(self, name: str) -> list[Event]:
        """Return the events of a job, oldest first."""
        with translated(self.remote):
            return await _permitted(remote_jobs.events(self.remote, (await self.get(name)).job))

    async def explain(self, name: str) -> Explanation:
        """Explain a job's state."""
        job = (await self.get(name)).job
        pods = await _permitted(remote_jobs.pods(self.remote, job))
        events = await _permitted(remote_jobs.events(self.remote, job))
        return explanation(job, pods, events, f"in {self.where}", self.flags, time.time())

    async def curves(self, name: str, wanted: Iterable[str] | None = None, scale: Scale = "overview") -> Curves:  # noqa: ARG002
        """Return the curves that the status keeps: the page sends no command into a pod."""
        return of_status((await self.get(name)).job.status, wanted)

    async def environment(self, name: str) -> bytes | None:  # noqa: ARG002
        """Return None: it could only be read by a command in a pod."""
        return None


async def _permitted(reading: Awaitable[list[T]]) -> list[T]:
    try:
        return await reading
    except Rejected as error:
        if error.code != 403:
            raise
        return []


def _kept(document: Document) -> Kept:
    return Kept(remote_jobs.typed(document), document)
