"""A write of a status: the whole of it, to the version that was read (docs/decisions/0023-a-status-is-replaced.md)."""

from typing import Any

from torchyard.api.resource import API_VERSION, KIND, ObjectMeta
from torchyard.cluster.kube.client import METADATA_OF_ONE, UNCHECKED, Api
from torchyard.cluster.kube.jobs import job_path


async def replace_status(api: Api, meta: ObjectMeta, status: dict[str, Any]) -> bytes:
    """Replace the status of the job of this uid and version, and nothing else; return its metadata as it is now.

    Raises:
        Conflict: it is another object, or another version of it.
        NotFound, Gone, Rejected, Unavailable: it was not written.
    """
    body: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
        },
        "status": status,
    }
    path = f"{job_path((meta.namespace, meta.name))}/status"
    return await api.request("PUT", path, params=UNCHECKED, body=body, accept=METADATA_OF_ONE)
