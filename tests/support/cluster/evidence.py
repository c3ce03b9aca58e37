"""What a namespace holds when a test fails: objects, events, logs of pods, in one folder; the gist in a few lines."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from torchyard.kubernetes.client.api import Api
from torchyard.kubernetes.client.errors import NotFound, Rejected
from torchyard.reconcile.ports import Unavailable

OBJECTS = {
    "trainingjobs": "/apis/torchyard.dev/v1alpha1/namespaces/{}/trainingjobs",
    "pods": "/api/v1/namespaces/{}/pods",
    "events": "/api/v1/namespaces/{}/events",
    "leases": "/apis/coordination.k8s.io/v1/namespaces/{}/leases",
    "claims": "/api/v1/namespaces/{}/persistentvolumeclaims",
}
# Where the API server keeps events of nodes, which have no namespace.
NODE_EVENTS = "/api/v1/namespaces/default/events"


async def collect(api: Api, namespace: str, folder: Path) -> str:
    """Write everything there is; what cannot be read says why. Return the gist."""
    folder.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 -- nothing else runs now
    for name, path in OBJECTS.items():
        found = await _read(api, path.format(namespace))
        (folder / f"{name}.json").write_bytes(found)
        if name == "pods":
            await _logs(api, namespace, found, folder)
    return "\n".join(_gist(folder, await _read(api, NODE_EVENTS)))


def _gist(folder: Path, of_nodes: bytes) -> Iterator[str]:
    """Lines about jobs and their attempts, and about warnings of the namespace and of nodes."""
    for job in _items((folder / "trainingjobs.json").read_bytes()):
        status = job.get("status", {})
        yield f"{job['metadata']['name']}: {status.get('state')} {status.get('reason')}: {status.get('message')}"
        for attempt in status.get("attempts", ())[-5:]:
            yield f"  round {attempt.get('round')}: {attempt.get('reason')}: {json.dumps(attempt.get('cause'))}"
    for event in (*_items((folder / "events.json").read_bytes()), *_items(of_nodes)):
        if event["type"] == "Warning" or event["reason"] in {"NodeNotReady", "NodeReady"}:
            name, when = event["involvedObject"]["name"], event.get("lastTimestamp") or event.get("eventTime")
            yield f"{when} {name} {event['reason']}: {event.get('message', '')[:300]}"


def _items(read: bytes) -> list[dict[str, Any]]:
    try:
        return json.loads(read).get("items", [])
    except ValueError:  # why it could not be read
        return []


async def _logs(api: Api, namespace: str, pods: bytes, folder: Path) -> None:
    for pod in _items(pods):
        name = pod["metadata"]["name"]
        for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
            path = f"/api/v1/namespaces/{namespace}/pods/{name}/log"
            params = {"container": container["name"], "tailLines": "500"}
            (folder / f"{name}.{container['name']}.log").write_bytes(await _read(api, path, params))


async def _read(api: Api, path: str, params: dict[str, str] | None = None) -> bytes:
    try:
        found = await api.request(
            "GET", path, params=params, accept="*/*" if path.endswith("/log") else "application/json"
        )
    except (Unavailable, NotFound, Rejected) as error:
        return f"{type(error).__name__}: {error}".encode()
    try:
        return msgspec.json.format(found, indent=1)
    except msgspec.DecodeError:
        return found
