"""A node without a machine: its pods run by name only, with simulated agents in them that end as a test tells them.

The scheduler places them, and everything they do is reported to the API server as a kubelet reports it.
"""

import asyncio
import contextlib
import functools
import json
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
from tests.cluster.plans.agent import ASKED_TO_STOP, Agent, Send

from torchyard.agents.auth.tokens import AUDIENCE
from torchyard.kubernetes.client.api import Api
from torchyard.kubernetes.client.errors import Conflict, NotFound

LABEL = "torchyard.dev/plans"
BEAT_SECONDS = 5.0
STRATEGIC_PATCH = "application/strategic-merge-patch+json"

Tell = Callable[[str, dict[str, Any], Send, str], Awaitable[dict[str, Any] | None]]
"""Carries what the agent of the pod of this name says to the intake of this URL, by sending it."""


async def _at_once(_pod: str, _says: dict[str, Any], send: Send, to: str) -> dict[str, Any] | None:
    return await send(to)


class Heart:
    """What beats in a node that is only played.

    Attributes:
        well: whether it says that it is Ready.
    """

    def __init__(self, api: Api, name: str) -> None:
        self.well = True
        self._api, self._path = api, f"/api/v1/nodes/{name}/status"

    async def beat(self) -> None:
        """Report to the API server once."""
        body = {"status": {"conditions": [ready(self.well)]}}
        await self._api.request("PATCH", self._path, body=body, content_type=STRATEGIC_PATCH)


@contextlib.asynccontextmanager
async def node(api: Api, name: str) -> AsyncIterator[Heart]:
    """A node whose heart beats, for pods that select it and tolerate everything.

    Pods that prepare volumes tolerate `NoSchedule`, and would wait here for ever: they prefer other nodes.
    """
    room = {"cpu": "1000", "memory": "1Ti", "pods": "10000"}
    body = {
        "metadata": {"name": name, "labels": {LABEL: name, "kubernetes.io/hostname": name}},
        "spec": {
            "taints": [
                {"key": LABEL, "value": "played", "effect": effect} for effect in ("NoSchedule", "PreferNoSchedule")
            ]
        },
        "status": {"capacity": room, "allocatable": room, "conditions": [ready()]},
    }
    await api.request("POST", "/api/v1/nodes", body=body)
    heart = Heart(api, name)
    beating = asyncio.create_task(_beat(heart))
    try:
        yield heart
    finally:
        beating.cancel()
        await api.request("DELETE", f"/api/v1/nodes/{name}", body={})


async def _beat(heart: Heart) -> None:
    while True:
        await heart.beat()
        await asyncio.sleep(BEAT_SECONDS)


def placement(node_name: str) -> dict[str, Any]:
    """`spec.scheduling` of jobs whose pods go there."""
    return {"nodeSelector": {LABEL: node_name}, "tolerations": [{"operator": "Exists"}]}


class Container:
    """The trainer's container of one pod."""

    def __init__(self, pod: dict[str, Any]) -> None:
        self.name, self.uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        self.job = pod["metadata"]["ownerReferences"][0]["name"]
        self.agent: Agent | None = None
        self.over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.deleted = asyncio.Event()
        self.may_start = asyncio.Event()

    def end(self, code: int) -> None:
        """Its process ends."""
        if not self.over.done():
            self.over.set_result(code)


class Kubelet:
    """Plays the pods of one namespace.

    Args:
        api: the server, not by way of a proxy.
        namespace: of the pods.
        node: name of the node.
        intake: URL that agents call.
        authority: certificate of its authority.

    Attributes:
        intake: URL that agents call now.
        tell: sends the syncs of agents.
        slow: names of jobs whose pods wait for `may_start`.
        known: all there ever were, by pod uid.
        containers: those that run, by pod name.
        overlaps: where members of one job trained in two rounds at the same time, by its name.
    """

    def __init__(self, api: Api, namespace: str, *, node: str, intake: str, authority: Path) -> None:
        self.node, self.intake = node, intake
        self.tell: Tell = _at_once
        self.slow: set[str] = set()
        self.containers: dict[str, Container] = {}
        self.overlaps: defaultdict[str, list[str]] = defaultdict(list)
        self._api, self._path = api, f"/api/v1/namespaces/{namespace}"
        self._authority = authority
        self.known: dict[str, Container] = {}  # by pod uid
        self._session: aiohttp.ClientSession | None = None
        self._work: asyncio.TaskGroup | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Kubelet"]:
        trust = ssl.create_default_context(cafile=str(self._authority))
        connector = aiohttp.TCPConnector(ssl=trust, limit=0)
        async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:
            self._session, self._work = session, group
            try:
                yield self
            finally:
                for task in self._tasks:
                    task.cancel()

    def see(self, kind: str, pod: dict[str, Any]) -> None:
        """Receive every event of the namespace's pods."""
        meta = pod["metadata"]
        container = self.known.get(meta["uid"])
        if container is None and pod["spec"].get("nodeName") and kind != "DELETED":
            assert self._work is not None
            container = self.known[meta["uid"]] = Container(pod)
            task = self._work.create_task(self._live(container, pod))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if container is not None and (kind == "DELETED" or meta.get("deletionTimestamp")):
            container.deleted.set()
            container.may_start.set()

    async def _live(self, container: Container, pod: dict[str, Any]) -> None:
        with contextlib.suppress(NotFound, Conflict):  # it was deleted by force
            try:
                if container.job in self.slow:
                    await container.may_start.wait()
                await self._tell(container, "Running", {"running": {"startedAt": now()}}, podIP="10.0.0.1")
                self.containers[container.name] = container
                code = await self._run(container, pod)
                end = {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": now()}
                await self._tell(container, "Failed" if code else "Succeeded", {"terminated": end})
            finally:
                self.containers.pop(container.name, None)
        await container.deleted.wait()
        with contextlib.suppress(NotFound, Conflict):
            body = {"gracePeriodSeconds": 0, "preconditions": {"uid": container.uid}}
            await self._api.request("DELETE", f"{self._path}/pods/{container.name}", body=body)

    async def _run(self, container: Container, pod: dict[str, Any]) -> int:
        """Return the exit code of its process, once it ended by itself or on request."""
        ends: set[asyncio.Future[Any]] = {container.over, asyncio.ensure_future(container.deleted.wait())}
        if pod["spec"].get("initContainers"):  # that bring the agent
            assert self._session is not None
            token, begins = await self._token(container), functools.partial(self._begins, container)
            tell = functools.partial(self._carry, container.name)
            container.agent = Agent(self._session, tell, token, "10.0.0.1", begins)
            ends.add(asyncio.ensure_future(container.agent.run()))
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in ends:
                each.cancel()
        results = [each.result() for each in done]
        return ASKED_TO_STOP if True in results else results[0]

    async def _carry(self, pod: str, says: dict[str, Any], send: Send) -> dict[str, Any] | None:
        return await self.tell(pod, says, send, self.intake)

    def _begins(self, container: Container) -> None:
        """Invariant I14: two rounds of one job never train at the same time."""
        rounds = {
            each.name: each.agent.round
            for each in self.containers.values()
            if each.job == container.job and each.agent is not None and each.agent.trains
        }
        if len(set(rounds.values())) > 1:
            self.overlaps[container.job].append(f"I14: rounds train at the same time: {rounds}")

    async def _token(self, container: Container) -> str:
        bound = {"kind": "Pod", "apiVersion": "v1", "name": container.name, "uid": container.uid}
        spec = {"audiences": [AUDIENCE], "expirationSeconds": 3600, "boundObjectRef": bound}
        path = f"{self._path}/serviceaccounts/default/token"
        return json.loads(await self._api.request("POST", path, body={"spec": spec}))["status"]["token"]

    async def _tell(self, container: Container, phase: str, state: dict[str, Any], **status: Any) -> None:
        runs = "True" if phase == "Running" else "False"
        told = {
            "phase": phase,
            "conditions": [
                {"type": kind, "status": runs, "lastTransitionTime": now()} for kind in ("Ready", "ContainersReady")
            ],
            "containerStatuses": [
                {"name": "trainer", "image": "", "imageID": "", "ready": phase == "Running", "restartCount": 0}
                | {"state": state}
            ],
            **status,
        }
        body = {"metadata": {"uid": container.uid}, "status": told}
        path = f"{self._path}/pods/{container.name}/status"
        await self._api.request("PATCH", path, body=body, content_type=STRATEGIC_PATCH)


def ready(well: bool = True) -> dict[str, Any]:
    """The condition of a node."""
    return {
        "type": "Ready",
        "status": "True" if well else "False",
        "reason": "KubeletReady" if well else "KubeletNotReady",
        "lastHeartbeatTime": now(),
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
