"""The code of a job on a cluster: immutable ConfigMaps named by its digest, owned by the jobs that use them.

They are created after the job, so that none is an orphan, whenever the process that submits is killed: the garbage
collector deletes them with the last job that owns them.
"""

import asyncio
import base64
import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec

from torchyard.api.names import CODE_ARRIVED
from torchyard.client.remote.session import Remote
from torchyard.kubernetes.client.api import MERGE_PATCH, STRATEGIC_PATCH
from torchyard.kubernetes.client.errors import AlreadyExists, Conflict, Gone, NotFound, Rejected
from torchyard.kubernetes.manifests.names import MANAGED_BY, MANAGER, PART, code_parts
from torchyard.reconcile.ports import Unavailable

Document = dict[str, Any]
_TIMEOUT = 60.0
_PARTS_AT_ONCE = 4


async def upload(remote: Remote, owner: Document, digest: str, parts: Sequence[bytes]) -> None:
    """Create the ConfigMaps of some code, or become a further owner of those that exist.

    Args:
        remote: the cluster.
        owner: owner reference of the job or sweep.
        digest: of the code.
        parts: of its archive.

    Raises:
        Rejected, Unavailable: the API server does not store them.
    """
    few = asyncio.Semaphore(_PARTS_AT_ONCE)

    async def one(name: str, part: bytes) -> None:
        async with few:
            await _ensure(remote, config_map(remote.namespace, name, digest, owner, part))

    try:
        async with asyncio.TaskGroup() as tasks:
            for name, part in zip(code_parts(digest, len(parts)), parts, strict=True):
                tasks.create_task(one(name, part))
    except ExceptionGroup as group:
        raise group.exceptions[0] from group


async def announce(remote: Remote, path: str, digest: str) -> bytes:
    """Note in a job that its code has arrived; return the job."""
    body = {"metadata": {"annotations": {CODE_ARRIVED: digest}}}
    return await remote.api.request("PATCH", path, body=body, content_type=MERGE_PATCH)


def owner_of(document: Document) -> Document:
    """Return the owner reference of an object."""
    metadata = document["metadata"]
    return {
        "apiVersion": document["apiVersion"],
        "kind": document["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
    }


def config_map(namespace: str, name: str, digest: str, owner: Document, part: bytes) -> Document:
    """Return the ConfigMap of one part."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": namespace,
            # The value of a label has at most 63 characters, a digest 64.
            "labels": {MANAGED_BY: MANAGER, CODE_ARRIVED: digest[:12]},
            "ownerReferences": [owner],
        },
        "binaryData": {PART: base64.b64encode(part).decode()},
        "immutable": True,
    }


async def release(remote: Remote, owner_uid: str, digest: str, count: int) -> None:
    """Remove a job from the owners of code that it does not use any more; without owners, delete the ConfigMaps.

    What fails stays, and is deleted with the job.

    Args:
        remote: the cluster.
        owner_uid: of the job.
        digest: of the code.
        count: of its parts.
    """
    for name in code_parts(digest, count):
        path = f"/api/v1/namespaces/{remote.namespace}/configmaps/{name}"
        with contextlib.suppress(NotFound, Conflict, Gone, Rejected, Unavailable):
            metadata = msgspec.json.decode(await remote.api.request("GET", path))["metadata"]
            seen = {"resourceVersion": metadata["resourceVersion"]}
            others = [each for each in metadata.get("ownerReferences") or [] if each["uid"] != owner_uid]
            if others:
                body: Document = {"metadata": {**seen, "ownerReferences": others}}
                await remote.api.request("PATCH", path, body=body, content_type=MERGE_PATCH)
            else:
                # One that another submission has become an owner of in between has another version.
                await remote.api.request("DELETE", path, body={"preconditions": seen})


async def _ensure(remote: Remote, document: Document) -> None:
    path = f"/api/v1/namespaces/{remote.namespace}/configmaps"
    owners = {"metadata": {"ownerReferences": document["metadata"]["ownerReferences"]}}
    while True:
        try:
            await remote.api.request("POST", path, body=document, timeout=_TIMEOUT)
        except AlreadyExists:
            try:
                named = f"{path}/{document['metadata']['name']}"
                await remote.api.request("PATCH", named, body=owners, content_type=STRATEGIC_PATCH)
            except NotFound:
                continue  # the garbage collector deleted it in between, with its last job
        return
