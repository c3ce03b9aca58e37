"""Writes to the objects of gang schedulers: each is tried once, and what it means is decided by the object's owner."""

from typing import Any

import msgspec

from torchyard.api.reasons import Reason
from torchyard.api.resource import TrainingJob
from torchyard.kubernetes.cache.gang_objects import GangObjects, owned
from torchyard.kubernetes.client.api import MERGE_PATCH, Api
from torchyard.kubernetes.client.errors import AlreadyExists, Conflict, NotFound, Rejected
from torchyard.kubernetes.companions import PREDECESSOR_SECONDS
from torchyard.kubernetes.diagnostics.admission import LONG_SECONDS, refused
from torchyard.kubernetes.manifests import names
from torchyard.kubernetes.manifests.pod import owner
from torchyard.reconcile.ports import Refused, Unavailable
from torchyard.schedulers.protocol import Change, CreateObject, DeleteObject, Kind, PatchObject

MAX_EVIDENCE = 500


class GangWrites:
    """Executes the changes of a plan.

    Args:
        api: for writes: within the budget, behind the fence.
        objects: the cache, to which every answer is applied.
    """

    def __init__(self, api: Api, objects: GangObjects) -> None:
        self._api, self._objects = api, objects

    async def execute(self, job: TrainingJob, change: Change) -> None:
        """Create, change or delete an object; one that is as wanted already is success.

        Raises:
            Refused: the API server rejects it, or the name belongs to another owner.
            Conflict, Unavailable: to be tried again.
        """
        namespace = job.metadata.namespace
        try:
            if isinstance(change, CreateObject):
                await self._create(job, namespace, change)
            elif isinstance(change, PatchObject):
                await self._patch(namespace, change)
            else:
                await self._delete(namespace, change)
        except (Rejected, Unavailable) as error:
            found = refused(error)
            what = f"{change.kind.kind} {change.name}"
            if found is None:
                raise
            if found.reason is Reason.POD_INVALID:  # said of pods
                message = error.message if isinstance(error, Rejected) else str(error)
                evidence = f"{what}: {' '.join(message.split())}"[:MAX_EVIDENCE]
                found = Refused(Reason.SCHEDULER_REJECTED, evidence, retry_after=LONG_SECONDS)
            raise found from error

    async def _create(self, job: TrainingJob, namespace: str, change: CreateObject) -> None:
        path = change.kind.path(namespace)
        try:
            answer = await self._api.request("POST", path, body=manifest(job, change))
        except AlreadyExists:
            try:
                answer = await self._api.request("GET", f"{path}/{change.name}")
            except NotFound as error:
                raise Conflict(f"{change.kind.kind} {change.name} was deleted while it was read") from error
            document: dict[str, Any] = msgspec.json.decode(answer)
            if not owned(document, job.metadata.uid):
                what = f"{change.kind.kind} {change.name} does not belong to this job"
                raise Refused(Reason.NAME_CONFLICT, what, retry_after=PREDECESSOR_SECONDS) from None
        except NotFound as error:
            missing = f"{change.kind.kind} of {change.kind.api_version} cannot be created: {error}"
            raise Refused(Reason.SCHEDULER_UNAVAILABLE, missing, retry_after=LONG_SECONDS) from error
        self._objects.put(change.kind, namespace, answer)

    async def _patch(self, namespace: str, change: PatchObject) -> None:
        path = f"{change.kind.path(namespace)}/{change.name}"
        precondition = {"uid": change.uid} | ({"resourceVersion": change.version} if change.version else {})
        body = change.patch | {"metadata": {**change.patch.get("metadata", {}), **precondition}}
        suffix = f"/{change.subresource}" if change.subresource else ""
        try:
            answer = await self._api.request("PATCH", path + suffix, body=body, content_type=MERGE_PATCH)
        except NotFound:
            self._objects.forget(change.kind, namespace, change.uid)
        except Conflict:
            await self._reread(change.kind, namespace, change.name, change.uid)
            raise
        else:
            self._objects.put(change.kind, namespace, answer)

    async def _delete(self, namespace: str, change: DeleteObject) -> None:
        path = f"{change.kind.path(namespace)}/{change.name}"
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": change.uid}}
        try:
            answer = await self._api.request("DELETE", path, body=options)
        except NotFound:
            self._objects.forget(change.kind, namespace, change.uid)
        except Conflict:
            if await self._reread(change.kind, namespace, change.name, change.uid):
                raise
        else:
            if msgspec.json.decode(answer).get("kind") == "Status":  # it went at once
                self._objects.forget(change.kind, namespace, change.uid)
            else:
                self._objects.put(change.kind, namespace, answer)

    async def _reread(self, kind: Kind, namespace: str, name: str, uid: str) -> bool:
        """Read an object again, since the cache is outdated; return whether it is still the one of this uid."""
        try:
            answer = await self._api.request("GET", f"{kind.path(namespace)}/{name}")
        except NotFound:
            self._objects.forget(kind, namespace, uid)
            return False
        self._objects.put(kind, namespace, answer)
        same = bool(msgspec.json.decode(answer)["metadata"]["uid"] == uid)
        if not same:
            self._objects.forget(kind, namespace, uid)
        return same


def manifest(job: TrainingJob, change: CreateObject) -> dict[str, Any]:
    """Return the object as it is created: with the labels of the job, which controls it."""
    metadata = change.manifest["metadata"]
    labels = {
        **metadata.get("labels", {}),
        names.MANAGED_BY: names.MANAGER,
        names.JOB: job.metadata.name,
        names.JOB_UID: job.metadata.uid,
    }
    own = {"namespace": job.metadata.namespace, "labels": labels, "ownerReferences": [owner(job)]}
    return change.manifest | {"metadata": metadata | own}
