"""TrainingJobs, their pods and their events, as the API server has them."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from torchyard.api.resource import GROUP, PLURAL, VERSION, TrainingJob
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.validation.parse import InvalidJob, parse_job
from torchyard.client.errors import TorchYardError
from torchyard.client.remote.session import Remote
from torchyard.kubernetes.cache import pod_record
from torchyard.kubernetes.client.api import MERGE_PATCH, METADATA_OF_ALL
from torchyard.kubernetes.client.pages import pages
from torchyard.kubernetes.manifests import names
from torchyard.kubernetes.objects import KubePod, Listed
from torchyard.local.run import Event
from torchyard.reconcile.observed import Pod

Document = dict[str, Any]
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


def jobs_path(namespace: str | None) -> str:
    """Return the path of the jobs of a namespace; None: of all."""
    within = f"/namespaces/{namespace}" if namespace is not None else ""
    return f"/apis/{GROUP}/{VERSION}{within}/{PLURAL}"


def job_path(remote: Remote, name: str) -> str:
    """Return the path of one job.

    Raises:
        TorchYardError: the name is invalid. Deleting the path of an empty name would delete every job.
    """
    if not _NAME.fullmatch(name):
        raise TorchYardError(
            f"{name!r} is not a valid name of a TrainingJob", f"`torchyard ps{remote.flags}` lists them"
        )
    return f"{jobs_path(remote.namespace)}/{name}"


async def get(remote: Remote, name: str) -> Document:
    """Return one job as it is kept.

    Raises:
        NotFound: it does not exist.
    """
    return _document(await remote.api.request("GET", job_path(remote, name)))


async def get_all(remote: Remote, *, everywhere: bool) -> list[Document]:
    """Return the jobs of the namespace, or of all namespaces."""
    return await get_pages(remote, jobs_path(None if everywhere else remote.namespace))


async def get_pages(remote: Remote, path: str, **selectors: str) -> list[Document]:
    """Return the objects of a collection, read in pages.

    Args:
        remote: the cluster.
        path: of the collection.
        selectors: parameters of the query, such as `labelSelector`.

    Raises:
        NotFound: the collection does not exist.
    """
    read = msgspec.json.Decoder(Listed[Document]).decode
    found: list[Document] = []
    async for page in pages(remote.api, path, read, selectors, timeout=60.0):
        found += page.items or []
    return found


async def names_at(remote: Remote, path: str) -> list[str]:
    """Return the names of the objects of a collection, without reading more of them."""
    read = msgspec.json.Decoder(Listed[Document]).decode
    found: list[str] = []
    async for page in pages(remote.api, path, read, {}, accept=METADATA_OF_ALL, timeout=60.0):
        found += [each["metadata"]["name"] for each in page.items or []]
    return found


async def create(remote: Remote, document: Mapping[str, Any], *, dry_run: bool = False) -> Document:
    """Create a job, or only let the server check it; it rejects unknown fields instead of dropping them."""
    params = {"fieldManager": "torchyard", "fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
    return _document(await remote.api.request("POST", jobs_path(remote.namespace), params=params, body=document))


async def set_suspend(remote: Remote, name: str, suspend: bool) -> Document:
    """Set `spec.suspend`."""
    body = {"spec": {"suspend": suspend}}
    answer = await remote.api.request("PATCH", job_path(remote, name), body=body, content_type=MERGE_PATCH)
    return _document(answer)


async def set_nodes(remote: Remote, name: str, nodes: int) -> Document:
    """Set `spec.nodes`."""
    body = {"spec": {"nodes": nodes}}
    answer = await remote.api.request("PATCH", job_path(remote, name), body=body, content_type=MERGE_PATCH)
    return _document(answer)


async def delete(remote: Remote, name: str) -> None:
    """Ask for deletion; the pods go with the job."""
    body = {"propagationPolicy": "Background"}
    await remote.api.request("DELETE", job_path(remote, name), body=body)


async def events(remote: Remote, job: TrainingJob) -> list[Event]:
    """Return the events of a job, oldest first."""
    params = {"fieldSelector": f"involvedObject.uid={job.metadata.uid}"}
    answer = await remote.api.request("GET", f"/api/v1/namespaces/{remote.namespace}/events", params=params)
    listed = _document(answer).get("items") or []
    # Times are whole seconds: events within one are shown in the order in which the server recorded them.
    listed.sort(key=lambda each: int(each["metadata"].get("resourceVersion") or 0))
    found = [
        Event(
            time=each.get("lastTimestamp") or each.get("eventTime") or each["metadata"].get("creationTimestamp") or "",
            type=each.get("type") or "Normal",
            reason=each.get("reason") or "",
            message=each.get("message") or "",
        )
        for each in listed
    ]
    return sorted(found, key=lambda event: event.time)


async def pods(remote: Remote, job: TrainingJob) -> list[Pod]:
    """Return the pods of a job by index, without those of others; while a round is open its members alone.

    Only the operator can tell a forged pod from one that it created; the members of a round are in the status.
    """
    params = {"labelSelector": f"{names.JOB_UID}={job.metadata.uid}"}
    answer = await remote.api.request("GET", f"/api/v1/namespaces/{remote.namespace}/pods", params=params)
    listed = msgspec.json.decode(answer, type=Listed[KubePod]).items or []
    meet = job.status.rendezvous
    known = [
        seen.pod
        for pod in listed
        if (seen := pod_record.read(pod)) is not None
        and (seen.job_name, seen.job_uid) == (job.metadata.name, job.metadata.uid)
        and (not meet.open or seen.uid in meet.members)
    ]
    return sorted(known, key=lambda pod: (pod.index, pod.incarnation))


def typed(document: Document) -> TrainingJob:
    """Return a job for display; for an invalid one, the parts that can be read."""
    job = parse_job(document)
    if isinstance(job, TrainingJob):
        return job
    assert isinstance(job, InvalidJob), "the API server keeps no object without a name"
    said = msgspec.structs.replace(job.status, message=job.status.message or job.problem)
    return TrainingJob(metadata=job.metadata, spec=TrainingJobSpec(), status=said)


def _document(answer: bytes) -> Document:
    document: Document = msgspec.json.decode(answer)
    return document
