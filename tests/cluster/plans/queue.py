"""Kueue as far as a life in a queue needs it: Workloads that are served, and what its controller writes into them.

The kinds are served with no more than their names, so that no binary of Kueue is needed. Where Kueue itself is
installed, its controller would answer as well, and these lives are left out.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from tests.support.cluster import operators

from torchyard.kubernetes.client.api import APPLY_PATCH, MERGE_PATCH, Api
from torchyard.kubernetes.client.errors import NotFound
from torchyard.kubernetes.manifests import names
from torchyard.schedulers.kueue import FLAVOR, LOCAL_QUEUE, WORKLOAD, WORKLOAD_PRIORITY

KINDS = (WORKLOAD, LOCAL_QUEUE, FLAVOR, WORKLOAD_PRIORITY)
QUEUE = {"gang": "kueue", "queue": "plans"}
FLAGS = ("--schedulers", "kueue")
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
LOOK_SECONDS = 0.05


@contextlib.asynccontextmanager
async def served(api: Api) -> AsyncIterator[bool]:
    """Have the API server serve what the operator needs of Kueue for the block; False: Kueue itself is installed."""
    if await _is_served(api):
        yield False
        return
    made = [_definition(kind) for kind in KINDS]
    for each in made:
        params = {"fieldManager": "torchyard-tests", "force": "true"}
        path = f"{DEFINITIONS}/{each['metadata']['name']}"
        await api.request("PATCH", path, params=params, body=each, content_type=APPLY_PATCH)
    try:
        await operators.until(lambda: _is_served(api), why=lambda: "the API server does not serve Workloads")
        yield True
    finally:
        for each in made:
            with contextlib.suppress(NotFound):
                await api.request("DELETE", f"{DEFINITIONS}/{each['metadata']['name']}", body={})


class Queue:
    """Writes into the Workload of a job what Kueue would.

    Args:
        api: the server.
        namespace: of the job.
        job: its name.
    """

    def __init__(self, api: Api, namespace: str, job: str) -> None:
        self._api, self._path = api, WORKLOAD.path(namespace)
        self._selector = {"labelSelector": f"{names.JOB}={job}"}

    async def workload(self) -> dict[str, Any] | None:
        """Return the Workload; None: there is none."""
        listed = json.loads(await self._api.request("GET", self._path, params=self._selector))["items"]
        assert len(listed) <= 1, [each["metadata"]["name"] for each in listed]
        return listed[0] if listed else None

    async def holds(self, condition: str, status: str) -> bool:
        """Return whether a condition of the Workload has this status."""
        there = await self.workload()
        listed = (there or {}).get("status", {}).get("conditions", [])
        return any((each["type"], each["status"]) == (condition, status) for each in listed)

    async def admit(self) -> None:
        """Reserve quota for it and admit it, once it is there."""
        while (there := await self.workload()) is None:  # noqa: ASYNC110 -- read from the API server
            await asyncio.sleep(LOOK_SECONDS)
        assignment = {"name": "gang", "count": there["spec"]["podSets"][0]["count"]}
        admission = {"clusterQueue": "plans", "podSetAssignments": [assignment]}
        changed = {"QuotaReserved": "True", "Admitted": "True"}
        if any(each["type"] == "Evicted" for each in there.get("status", {}).get("conditions", [])):
            changed["Evicted"] = "False"
        await self._write(there, changed, "Admitted", admission=admission)

    async def evict(self) -> None:
        """Preempt it: its quota stays until the job gives it back."""
        there = await self.workload()
        assert there is not None
        await self._write(there, {"Evicted": "True"}, "Preempted")

    async def _write(self, there: dict[str, Any], changed: dict[str, str], reason: str, **status: Any) -> None:
        conditions = {each["type"]: each for each in there.get("status", {}).get("conditions", [])}
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for kind, value in changed.items():
            conditions[kind] = {
                "type": kind, "status": value, "reason": reason, "message": reason, "lastTransitionTime": now,
            }  # fmt: skip
        metadata = {"resourceVersion": there["metadata"]["resourceVersion"]}
        body = {"metadata": metadata, "status": {"conditions": list(conditions.values()), **status}}
        path = f"{self._path}/{there['metadata']['name']}/status"
        await self._api.request("PATCH", path, body=body, content_type=MERGE_PATCH)


async def _is_served(api: Api) -> bool:
    try:
        listed = json.loads(await api.request("GET", f"/apis/{WORKLOAD.api_version}"))
    except NotFound:
        return False
    return {each.plural for each in KINDS} <= {each["name"] for each in listed["resources"]}


def _definition(kind: Any) -> dict[str, Any]:
    name = f"{kind.plural}.{kind.group}"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": kind.version, "served": True, "storage": True,
        "schema": {"openAPIV3Schema": schema}, "subresources": {"status": {}},
    }  # fmt: skip
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        # The group is one that Kubernetes protects.
        "metadata": {"name": name, "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"}},
        "spec": {
            "group": kind.group,
            "names": {
                "kind": kind.kind,
                "plural": kind.plural,
                "singular": kind.kind.lower(),
                "listKind": f"{kind.kind}List",
            },
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "versions": [version],
        },
    }
