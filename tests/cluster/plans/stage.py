"""Where lives are played: a namespace, an operator behind a proxy, a simulated kubelet, and one job at a time."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import operators
from fault_proxy import FaultProxy
from jobs import Jobs
from place import fresh_namespace
from plans.faults import History, Recorder
from plans.kubelet import Container, Kubelet, placement
from plans.record import Record, follow

from torchyard.api.status import TERMINAL_STATES
from torchyard.cluster.kube.client import Api
from torchyard.cluster.kube.errors import NotFound

LOOK_SECONDS = 0.02


class EndedError(Exception):
    """The job is over although its life is not."""


class Lane:
    """A namespace in which one life is played after the other.

    Attributes:
        past: collections as the operator was told them.
        stage: of the life that is played now.
    """

    def __init__(self, api: Api, jobs: Jobs, proxy: FaultProxy, operator: operators.Operator, kubelet: Kubelet) -> None:
        self.api, self.jobs, self.proxy, self.operator, self.kubelet = api, jobs, proxy, operator, kubelet
        self.past: dict[str, History] = {}
        self.stage: Stage | None = None
        self._restart: asyncio.Task[None] | None = None

    async def restart(self, away: float = 0.0) -> None:
        """Kill the operator and start another process in its place, as a kubelet does, or so many seconds later."""
        # Its death also cancels whoever works on a request of its own.
        self._restart = asyncio.create_task(self._replace(away))
        await asyncio.shield(self._restart)

    async def _replace(self, away: float) -> None:
        await self.operator.kill()
        await asyncio.sleep(away)
        self.operator.start()

    async def ready(self) -> None:
        """Wait until the operator leads and knows what there is."""
        if self._restart is not None:
            await self._restart
        await self.operator.ready()
        await operators.until(self.operator.leads, 60, lambda: self.operator.log.read_text()[-3000:])

    def hear_pod(self, kind: str, pod: dict[str, Any]) -> None:
        self.kubelet.see(kind, pod)
        if self.stage is not None and pod["metadata"]["name"].startswith(f"{self.stage.name}-"):
            self.stage.record.hear_pod(kind, pod)

    def hear_job(self, kind: str, job: dict[str, Any]) -> None:
        if self.stage is not None and job["metadata"]["name"] == self.stage.name:
            self.stage.record.hear_job(kind, job)


@contextlib.asynccontextmanager
async def lane(api: Api, node: str, tls: Path, folder: Path) -> AsyncIterator[Lane]:
    """A lane of its own, ready."""
    folder.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 -- nothing else runs now
    async with fresh_namespace(api) as namespace, FaultProxy(api).listening() as proxy:
        with operators.several() as make:
            way = proxy.kubeconfig(folder / "kubeconfig")
            operator = make(folder, namespace, tls=tls, address="127.0.0.1", pod="operator-0", kubeconfig=way)
            intake = f"https://127.0.0.1:{operator.intake_port}"
            kubelet = Kubelet(api, namespace, node=node, intake=intake, authority=tls / "ca.crt")
            jobs = Jobs(api, namespace)
            one = Lane(api, jobs, proxy, operator, kubelet)
            proxy.tamper = Recorder("nobody", one.past)
            async with kubelet.running(), asyncio.TaskGroup() as group:
                following = [
                    group.create_task(follow(api, f"{jobs.core}/pods", one.hear_pod)),
                    group.create_task(follow(api, jobs.path, one.hear_job)),
                ]
                operator.start()
                try:
                    await one.ready()
                    yield one
                finally:
                    for each in following:
                        each.cancel()


class Stage:
    """One life in a lane: what it waits for, and what it does to the job.

    Args:
        lane: to play in.
        name: of the job.
        patience: seconds that nothing may take longer than.
    """

    def __init__(self, lane: Lane, name: str, patience: float) -> None:
        self.name, self.record = name, Record(name)
        self._lane, self._jobs = lane, lane.jobs
        self._deadline = time.monotonic() + patience
        lane.stage = self

    async def begin(self, spec: dict[str, Any]) -> None:
        await self._jobs.submit(self.name, **spec, scheduling=placement(self._lane.kubelet.node))

    # What it waits for.

    async def trains(self, number: int) -> None:
        """Round `number` is under way in every member."""
        await self._until(f"round {number} trains", lambda: self._trains(number))

    async def round(self, number: int) -> None:
        """Round `number` is open."""
        await self._until(f"round {number} is open", lambda: self._is_open(number))

    async def state(self, state: str) -> None:
        await self._until(state, lambda: self.record.status.get("state") == state)

    async def ends(self, state: str) -> None:
        await self._until(state, lambda: self.record.status.get("state") == state)

    async def gone(self) -> None:
        """Neither the job nor a pod of it is there."""
        await self._until("everything is gone", lambda: self.record.job is None and not self.record.pods, may_end=True)

    # What it does.

    def container(self, place: str) -> Container:
        """Of the pod of this incarnation and index."""
        return self._lane.kubelet.containers[f"{self.name}-{place}"]

    async def finish(self, code: int, *, rank: int | None = None) -> None:
        """The workers of all members, or of one, end with this code."""
        members = self._members()
        for each in members if rank is None else [members[rank]]:
            if each.agent is None:
                each.end(code)
            else:
                each.agent.finish(code, "ValueError: told to" if code else "")

    async def edit(self, **spec: Any) -> None:
        await self._jobs.edit(self.name, **spec)

    async def delete_pod(self, place: str, *, grace_seconds: int | None = None) -> None:
        await self._jobs.delete_pod(f"{self.name}-{place}", grace_seconds=grace_seconds)

    async def delete_job(self) -> None:
        with contextlib.suppress(NotFound):
            await self._lane.api.request("DELETE", f"{self._jobs.path}/{self.name}", body={})

    def _members(self) -> list[Container]:
        uids = self.record.status.get("rendezvous", {}).get("members", [])
        running = {each.uid: each for each in self._lane.kubelet.containers.values()}
        return [running[uid] for uid in uids if uid in running]

    def _is_open(self, number: int) -> bool:
        status = self.record.status
        meet = status.get("rendezvous", {})
        return bool(status.get("round") == number and meet.get("open") and len(self._members()) == len(meet["members"]))

    def _trains(self, number: int) -> bool:
        agents = [each.agent for each in self._members()]
        told = all(agent is not None and agent.trains and agent.round == number for agent in agents)
        return self._is_open(number) and self.record.status.get("state") == "Running" and told

    async def _until(self, what: str, condition: Callable[[], bool], *, may_end: bool = False) -> None:
        while not condition():
            status = self.record.status
            if status.get("state") in TERMINAL_STATES and not may_end:
                raise EndedError(f"{status['state']}/{status['reason']}, waiting until {what}: {status['message']}")
            if time.monotonic() > self._deadline:
                shown = {key: status.get(key) for key in ("state", "reason", "message", "round", "rendezvous")}
                raise TimeoutError(f"waiting until {what}: {json.dumps(shown)}, pods {sorted(self.record.pods)}")
            await asyncio.sleep(LOOK_SECONDS)
