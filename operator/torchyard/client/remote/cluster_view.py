"""Read what a plan needs to know of a cluster, with the rights of the user: what may not be read is left out."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from torchyard.api.profiles.effective import with_profile
from torchyard.api.profiles.resource import PATH as PROFILES
from torchyard.api.profiles.resource import read_profile
from torchyard.api.resource import TrainingJob
from torchyard.api.status import TrainingJobStatus
from torchyard.client.plans.cluster_view import ClusterView
from torchyard.client.plans.quota import Queue
from torchyard.client.remote import jobs as remote_jobs
from torchyard.client.remote.jobs import Document
from torchyard.client.remote.session import Remote, rejected
from torchyard.kubernetes import kueue_objects
from torchyard.kubernetes.client.errors import AlreadyExists, Gone, NotFound, Rejected
from torchyard.kubernetes.client.pages import pages
from torchyard.kubernetes.diagnostics import claim_templates
from torchyard.kubernetes.objects import KubePod, Listed, Node
from torchyard.reconcile.profile import NO_PROFILE, ProfileVerdict, apply_profile

T = TypeVar("T")
READ_SECONDS = 60.0
UNFINISHED = "status.phase!=Succeeded,status.phase!=Failed"


class _Reader(NamedTuple):
    remote: Remote
    unread: list[str]

    async def part(self, what: str, read: Awaitable[T]) -> T | None:
        """Return a part of the view; None: it is not there, or may not be read, which is noted."""
        try:
            return await read
        except Rejected as error:
            self.unread.append(f"{what}: {error.message}")
        except (NotFound, Gone) as error:
            self.unread.append(f"{what}: {error}")
        return None


async def read(remote: Remote, job: TrainingJob, document: Document) -> ClusterView:
    """Return what can be read of the cluster.

    Args:
        remote: the cluster and namespace.
        job: to be planned.
        document: of the job, as it would be created.

    Raises:
        Unavailable: the API server does not answer.
    """
    unread: list[str] = []
    reader = _Reader(remote, unread)
    profile = await _profile(reader, job)
    job = with_profile(job, profile.pinned)
    nodes, (pods, own), (jobs, existing) = await asyncio.gather(
        reader.part("nodes", _all(remote, "/api/v1/nodes", Node)), _pods(reader), _jobs(reader, job.metadata.name)
    )
    queue, quotas, gpus, (accepted, rejection) = await asyncio.gather(
        _queue(reader, job),
        reader.part("quotas of the namespace", _quotas(remote)),
        _claimed_gpus(reader, job),
        _dry_run(remote, document),
    )
    return ClusterView(
        where=remote.where,
        nodes=None if nodes is None else tuple(nodes),
        pods=None if pods is None else tuple(pods),
        own_pods=tuple(own),
        jobs=tuple(jobs),
        existing=existing,
        profile=profile,
        queue=queue[0],
        cluster_queue=queue[1],
        quotas=tuple(quotas or ()),
        claimed_gpus=gpus,
        accepted=accepted,
        rejection=rejection,
        unread=tuple(sorted(unread)),
    )


async def _profile(reader: _Reader, job: TrainingJob) -> ProfileVerdict:
    """Return what the profile that a job names would mean for it, if it may be read."""
    name = job.spec.profile
    if name is None:
        return NO_PROFILE
    placed = replace(job, metadata=replace(job.metadata, namespace=reader.remote.namespace), status=TrainingJobStatus())
    try:
        answer = await reader.remote.api.request("GET", f"{PROFILES}/{name}")
    except NotFound:
        return apply_profile(placed, None)
    except Rejected as error:
        reader.unread.append(f"TrainingProfile {name}: {error.message}")
        return NO_PROFILE
    return apply_profile(placed, read_profile(msgspec.json.decode(answer)))


async def _pods(reader: _Reader) -> tuple[list[KubePod] | None, list[KubePod]]:
    """Return the pods of all namespaces, else None and those of the own one."""
    everywhere = await reader.part("pods of all namespaces", _all(reader.remote, "/api/v1/pods", KubePod, UNFINISHED))
    if everywhere is not None:
        return everywhere, []
    path = f"/api/v1/namespaces/{reader.remote.namespace}/pods"
    return None, await reader.part("pods of the namespace", _all(reader.remote, path, KubePod, UNFINISHED)) or []


async def _jobs(reader: _Reader, name: str) -> tuple[list[TrainingJob], TrainingJob | None]:
    """Return the jobs of all namespaces, else of the own one; and the one of this name here."""
    remote = reader.remote
    documents = await reader.part("jobs of all namespaces", remote_jobs.get_all(remote, everywhere=True))
    if documents is None:
        own = remote_jobs.get_all(remote, everywhere=False)
        documents = await reader.part("jobs of the namespace", own) or []
    jobs = [remote_jobs.typed(each) for each in documents]
    return jobs, next((each for each in jobs if each.key == (remote.namespace, name)), None)


async def _queue(reader: _Reader, job: TrainingJob) -> tuple[Queue | None, kueue_objects.ClusterQueue | None]:
    name = job.spec.scheduling.queue
    if name is None or job.spec.scheduling.gang not in {"auto", "kueue"}:
        return None, None
    path = kueue_objects.local_queue_path(reader.remote.namespace, name)
    local = await reader.part(f"LocalQueue {name}", _one(reader.remote, path, kueue_objects.LocalQueue))
    if local is None:
        return None, None
    of = local.spec.cluster_queue
    read = _one(reader.remote, kueue_objects.cluster_queue_path(of), kueue_objects.ClusterQueue)
    cluster_queue = await reader.part(f"ClusterQueue {of}", read)
    waiting = cluster_queue.status.pending_workloads if cluster_queue is not None else None
    return Queue(name=name, cluster_queue=of, waiting=waiting), cluster_queue


async def _quotas(remote: Remote) -> list[Document]:
    return await remote_jobs.get_pages(remote, f"/api/v1/namespaces/{remote.namespace}/resourcequotas")


async def _claimed_gpus(reader: _Reader, job: TrainingJob) -> int | None:
    """Return the GPUs in the claims of each pod; None: there are no claims, or a template does not tell."""
    counts: list[int | None] = []
    for claim in job.spec.resources.claims:
        path = claim_templates.path(reader.remote.namespace, claim.template)
        read = _one(reader.remote, path, dict[str, Any])
        template = await reader.part(f"ResourceClaimTemplate {claim.template}", read)
        counts.append(claim_templates.gpus_of(template) if template is not None else None)
    known = [count for count in counts if count is not None]
    return sum(known) if counts and len(known) == len(counts) else None


async def _dry_run(remote: Remote, document: Document) -> tuple[bool | None, str]:
    """Return whether the API server would create the object, and why not; None: there is one of its name already."""
    body = {**document, "metadata": {**document["metadata"], "namespace": remote.namespace}}
    try:
        await remote_jobs.create(remote, body, dry_run=True)
    except AlreadyExists:
        return None, ""
    except Rejected as error:
        return False, str(rejected(remote, error))
    return True, ""


async def _all(remote: Remote, path: str, kind: type[T], selector: str = "") -> list[T]:
    read: Callable[[bytes], Listed[T]] = msgspec.json.Decoder(Listed[kind]).decode  # type: ignore[valid-type]
    params = {"fieldSelector": selector} if selector else {}
    return [each async for page in pages(remote.api, path, read, params, timeout=READ_SECONDS) for each in _items(page)]


def _items(page: Listed[T]) -> Iterable[T]:
    return page.items or ()


async def _one(remote: Remote, path: str, kind: type[T]) -> T:
    return msgspec.json.decode(await remote.api.request("GET", path), type=kind)
