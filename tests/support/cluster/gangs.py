"""Gangs on a played node, and the queues of Kueue: what tests and benchmarks of gang schedulers have in common."""

import asyncio
import contextlib
import json
import secrets
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.cluster.plans.kubelet import LABEL, now, placement
from tests.cluster.plans.lane import Lane
from tests.support.cluster.operators import until

from torchyard.kubernetes.client.api import MERGE_PATCH, Api
from torchyard.kubernetes.client.errors import NotFound
from torchyard.schedulers import coscheduling, kueue, native, volcano
from torchyard.schedulers.protocol import Kind

GANG = {"command": ["torchrun", "train.py"], "nodes": 2, "gracePeriod": "5s"}
LARGE = {"resources": {"memory": "400Gi"}}  # of which the node holds two
QUOTA = "800Gi"  # a gang of two
KUEUE = f"/apis/{kueue.WORKLOAD.api_version}"
CLUSTER_QUEUE = Kind(kueue.GROUP, "v1beta2", "ClusterQueue", "clusterqueues", namespaced=False)
ADMISSION_CHECK = Kind(kueue.GROUP, "v1beta2", "AdmissionCheck", "admissionchecks", namespaced=False)
KINDS = {
    "kueue": (kueue.WORKLOAD,),
    "native": native.KINDS,
    "volcano": (volcano.KIND,),
    "coscheduling": (coscheduling.KIND,),
}


async def served(api: Api, name: str) -> str:
    """Return the path of the objects of a scheduler, without its namespace; skip the test if there are none."""
    for kind in KINDS[name]:
        with contextlib.suppress(NotFound):
            resources = json.loads(await api.request("GET", f"/apis/{kind.api_version}"))["resources"]
            if any(each["name"] == kind.plural for each in resources):
                return f"/apis/{kind.api_version}"
    how = "its feature gate is off" if name == "native" else f"make kind-up SCHEDULERS={name}"
    pytest.skip(f"the cluster does not have {name}: {how}")


class Gangs:
    """Jobs of two large pods, on a node that holds two of these.

    Args:
        lane: with an operator that may use the scheduler.
        scheduler: name.
        objects: path of the scheduler's kinds, without a namespace.
    """

    def __init__(self, lane: Lane, scheduler: str, objects: str) -> None:
        self.lane, self.jobs, self.scheduler = lane, lane.jobs, scheduler
        plural = "workloads" if scheduler == "kueue" else "podgroups"
        self.objects = f"{objects}/namespaces/{lane.jobs.namespace}/{plural}"
        self._placed: defaultdict[str, dict[str, float]] = defaultdict(dict)  # by job, by uid of a pod: when
        self._over: defaultdict[str, dict[str, float]] = defaultdict(dict)  # likewise: since it holds no node
        self._see, lane.kubelet.see = lane.kubelet.see, self._hear

    def _hear(self, kind: str, pod: dict[str, Any]) -> None:
        """Note when a pod gets a node, and when it holds none any more."""
        uid, job = pod["metadata"]["uid"], pod["metadata"]["labels"]["torchyard.dev/job"]
        if pod["spec"].get("nodeName"):
            self._placed[job].setdefault(uid, time.monotonic())
        if kind == "DELETED" or pod["status"]["phase"] in {"Succeeded", "Failed"}:
            self._over[job].setdefault(uid, time.monotonic())
        self._see(kind, pod)

    async def submit(self, name: str, *, nodes: int = 2, elastic: Any = None, **scheduling: Any) -> None:
        """Create a job; Kueue's flavor places its pods, else the job does."""
        where = {} if self.scheduler == "kueue" else placement(self.lane.kubelet.node)
        spec = {**GANG, **LARGE, "nodes": nodes, "scheduling": {"gang": self.scheduler, **where, **scheduling}}
        await self.jobs.submit(name, **spec | ({"elastic": elastic} if elastic is not None else {}))

    async def trains(self, name: str, number: int | None = None) -> dict[str, Any]:
        """Return the status once the newest round, or the one of this number, runs."""
        return await self.jobs.until(name, lambda now: now["state"] == "Running" and number in {None, now["round"]})

    async def waits(self, name: str, reason: str) -> dict[str, Any]:
        """Return the status once the job waits for this reason."""
        return await self.jobs.until(name, lambda now: now.get("reason") == reason)

    async def finish(self, name: str) -> None:
        """End the workers of a job well, as soon as all of them run."""
        kubelet = self.lane.kubelet

        def agents() -> list:
            return [each.agent for each in kubelet.containers.values() if each.job == name and each.agent is not None]

        await until(lambda: agents() and all(each.trains for each in agents()), why=lambda: f"{name} does not train")
        for each in agents():
            each.finish(0)

    async def ends(self, name: str) -> dict[str, Any]:
        """End a job well, and return its last status."""
        await self.finish(name)
        return await self.jobs.ends(name)

    async def first_of(self, *names: str) -> str:
        """Return which of these jobs runs first."""
        winner: list[str] = []

        async def one() -> bool:
            winner[:] = [name for name in names if (await self.jobs.status(name)).get("state") == "Running"]
            return bool(winner)

        await until(one, why=lambda: f"none of {', '.join(names)} runs")
        assert len(winner) == 1, f"{winner} run in a place for one"
        return winner[0]

    async def listed(self) -> list[dict[str, Any]]:
        """Return the scheduler's objects of the namespace."""
        return json.loads(await self.jobs.api.request("GET", self.objects))["items"]

    async def object_of(self, name: str) -> dict[str, Any]:
        """Return the scheduler's object of a job."""
        (found,) = [each for each in await self.listed() if each["metadata"]["labels"]["torchyard.dev/job"] == name]
        return found

    async def race(self, number: int) -> float:
        """Two gangs compete for room for one; return the seconds from room until the other one is placed."""
        names = [f"race-{number}-{side}" for side in "ab"]
        await asyncio.gather(*(self.submit(name, **self.queue) for name in names))
        winner = await self.first_of(*names)
        (loser,) = set(names) - {winner}
        assert not self._placed[loser], f"{loser} holds a part of the node"
        await self.ends(winner)
        await self.ends(loser)
        for name in names:
            await self.jobs.api.request("DELETE", f"{self.jobs.path}/{name}", body={})
        placed, room = self._placed[loser].values(), max(self._over[winner].values())
        assert min(placed) >= room, f"{loser} was placed beside {winner}"
        return max(placed) - room

    @property
    def queue(self) -> dict[str, str]:
        """The queue in the spec of a race."""
        return {"queue": "team"} if self.scheduler == "kueue" else {}

    async def no_leak(self) -> None:
        """Wait until nothing of the scheduler is left in the namespace."""

        async def empty() -> bool:
            return not await self.listed()

        await until(empty, why=lambda: f"objects of {self.scheduler} are left")


class Queues:
    """A ClusterQueue with room for one gang, whose flavor is the played node, and LocalQueues of a namespace."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.api, self.namespace, self.name = api, namespace, f"ty-{secrets.token_hex(3)}"
        self.local = f"{KUEUE}/namespaces/{namespace}/localqueues"

    async def flavor(self, node: str) -> None:
        """Create the flavor: the played node, or none."""
        spec = {"nodeLabels": {LABEL: node}, "tolerations": [{"key": LABEL, "operator": "Exists"}]} if node else {}
        await self._make(kueue.FLAVOR, self.name, spec=spec)

    async def cluster_queue(self, strategy: str = "BestEffortFIFO", **quota: str) -> None:
        """Create the ClusterQueue, in which a higher priority preempts. `quota`: by resource."""
        spec = {
            "namespaceSelector": {},
            "queueingStrategy": strategy,
            "resourceGroups": self.groups(**quota),
            "preemption": {"withinClusterQueue": "LowerPriority"},
        }
        await self._make(CLUSTER_QUEUE, self.name, spec=spec)

    def groups(self, flavor: str = "", **quota: str) -> list[dict[str, Any]]:
        """Return the resource groups of a ClusterQueue with one flavor, by default that of the played node."""
        amounts = [{"name": name, "nominalQuota": amount} for name, amount in quota.items()]
        flavors = [{"name": flavor or self.name, "resources": amounts}]
        return [{"coveredResources": [*quota], "flavors": flavors}]

    async def local_queue(self, name: str = "team") -> None:
        """Create a LocalQueue."""
        await self._make(kueue.LOCAL_QUEUE, name, spec={"clusterQueue": self.name})

    async def edit(self, **spec: Any) -> None:
        """Change the ClusterQueue."""
        path = f"{KUEUE}/clusterqueues/{self.name}"
        await self.api.request("PATCH", path, body={"spec": spec}, content_type=MERGE_PATCH)

    async def used(self) -> int:
        """Return how many Workloads have quota."""
        status = json.loads(await self.api.request("GET", f"{KUEUE}/clusterqueues/{self.name}")).get("status", {})
        return int(status.get("reservingWorkloads", 0))

    async def is_free(self) -> None:
        """Wait until no Workload has quota."""

        async def free() -> bool:
            return await self.used() == 0

        await until(free, why=lambda: "quota is held")

    async def is_gone(self) -> None:
        """Wait until the ClusterQueue, once it is deleted, does not exist."""

        async def gone() -> bool:
            try:
                await self.api.request("GET", f"{KUEUE}/clusterqueues/{self.name}")
            except NotFound:
                return True
            return False

        await until(gone, why=lambda: "the ClusterQueue exists")

    async def admission_check(self) -> str:
        """Require a check that only a test answers, and return its name."""
        await self._make(ADMISSION_CHECK, self.name, spec={"controllerName": "torchyard.dev/tests"})
        ready = {"type": "Active", "status": "True", "reason": "Active", "message": "", "lastTransitionTime": now()}
        path = f"{KUEUE}/admissionchecks/{self.name}/status"
        body = {"status": {"conditions": [ready]}}
        await self.api.request("PATCH", path, body=body, content_type=MERGE_PATCH)
        await self.edit(admissionChecksStrategy={"admissionChecks": [{"name": self.name}]})
        return self.name

    async def answer(self, workload: str, state: str, message: str, **updates: Any) -> None:
        """Answer the check of a Workload. `updates`: of the pods of its gang."""
        check = {"name": self.name, "state": state, "message": message, "lastTransitionTime": now()}
        check |= {"podSetUpdates": [{"name": "gang", **updates}]} if updates else {}
        path = f"{KUEUE}/namespaces/{self.namespace}/workloads/{workload}/status"
        await self.api.request("PATCH", path, body={"status": {"admissionChecks": [check]}}, content_type=MERGE_PATCH)

    async def priority(self, level: str, value: int) -> str:
        """Create a WorkloadPriorityClass and return its name."""
        name = f"{self.name}-{level}"
        await self._make(kueue.WORKLOAD_PRIORITY, name, value=value)
        return name

    async def delete(self, plural: str, name: str = "") -> None:
        """Delete an object of the cluster, or a LocalQueue."""
        path = self.local if plural == "localqueues" else f"{KUEUE}/{plural}"
        with contextlib.suppress(NotFound):
            await self.api.request("DELETE", f"{path}/{name or self.name}", body={})

    async def _make(self, kind: Kind, name: str, **fields: Any) -> None:
        path = kind.path(self.namespace if kind.namespaced else "")
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, **fields}
        await self.api.request("POST", path, body=body)


@contextlib.asynccontextmanager
async def queues(
    api: Api,
    namespace: str,
    node: str = "",
    memory: str = QUOTA,
    *,
    strategy: str = "BestEffortFIFO",
    **quota: str,
) -> AsyncIterator[Queues]:
    """The flavor, a ClusterQueue and the LocalQueue `team`, which go afterwards with the classes of priority."""
    made = Queues(api, namespace)
    await made.flavor(node)
    await made.cluster_queue(strategy, memory=memory, **quota)
    await made.local_queue()
    try:
        yield made
    finally:
        for plural in ("localqueues", "clusterqueues", "resourceflavors", "admissionchecks"):
            await made.delete(plural, "team" if plural == "localqueues" else made.name)
        for level in ("low", "high"):
            await made.delete("workloadpriorityclasses", f"{made.name}-{level}")


@contextlib.asynccontextmanager
async def away(api: Api, scheduler: str) -> AsyncIterator[None]:
    """Have a scheduler of the test bed stopped for a while."""
    path = f"/apis/apps/v1/namespaces/{scheduler}-system/deployments/{scheduler}"

    async def scale(replicas: int) -> None:
        body = {"spec": {"replicas": replicas}}
        await api.request("PATCH", path, body=body, content_type=MERGE_PATCH)

        async def so() -> bool:
            status = json.loads(await api.request("GET", path))["status"]
            return (status.get("readyReplicas", 0), status.get("replicas", 0)) == (replicas, replicas)

        await until(so, why=lambda: f"{scheduler} does not have {replicas} replicas")

    await scale(0)
    try:
        yield
    finally:
        await scale(1)
