"""What a namespace holds when a test fails: objects, events, logs of pods, in one folder."""

import json
from pathlib import Path

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


async def collect(api: Api, namespace: str, folder: Path) -> None:
    """Write everything there is; what cannot be read says why."""
    folder.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 -- nothing else runs now
    for name, path in OBJECTS.items():
        found = await _read(api, path.format(namespace))
        (folder / f"{name}.json").write_bytes(found)
        if name == "pods":
            await _logs(api, namespace, found, folder)


async def _logs(api: Api, namespace: str, pods: bytes, folder: Path) -> None:
    try:
        items = json.loads(pods).get("items", [])
    except ValueError:
        return
    for pod in items:
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
