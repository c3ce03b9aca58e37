"""One life on the stage of a lane: what it waits for, and what is done to its job."""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

from tests.cluster.plans.kubelet import Container, now, placement
from tests.cluster.plans.lane import Lane
from tests.cluster.plans.queue import Queue
from tests.cluster.plans.record import Record

from torchyard.api.status import State
from torchyard.kubernetes.client.errors import NotFound

LOOK_SECONDS = 0.02


class EndedError(Exception):
    """The job is over although its life is not."""


class Stage:
    """One life in a lane: what it waits for, and what it does to the job.

    Args:
        lane: to play in.
        name: of the job.
        patience: seconds that nothing may take longer than.
        goes_on: whether the life may go on beyond the first thing that it waits for.
    """

    def __init__(self, lane: Lane, name: str, patience: float, goes_on: Callable[[], bool] = lambda: True) -> None:
        self.name, self.record, self._goes_on = name, Record(name), goes_on
        self._lane, self._jobs = lane, lane.jobs
        self._queue = Queue(lane.api, lane.jobs.namespace, name)
        self._deadline = time.monotonic() + patience
        lane.stage = self

    async def begin(self, spec: dict[str, Any], *, slow: bool = False) -> None:
        """Submit the job; the pods of a slow one start on request."""
        if slow:
            self._lane.kubelet.slow.add(self.name)
        scheduling = placement(self._lane.kubelet.node) | spec.get("scheduling", {})
        await self._jobs.submit(self.name, **spec | {"scheduling": scheduling})

    # What it waits for.

    async def trains(self, number: int) -> None:
        """Round `number` is under way in every member."""
        await self._until(f"round {number} trains", lambda: self._trains(number))

    async def round(self, number: int) -> None:
        """Round `number` is open."""
        await self._until(f"round {number} is open", lambda: self._is_open(number))

    async def state(self, state: str) -> None:
        await self._until(state, lambda: self.record.status.get("state") == state)

    async def placed(self, number: int) -> None:
        """So many pods have a node."""

        def so() -> bool:
            return sum(bool(each["spec"].get("nodeName")) for each in self.record.pods.values()) == number

        await self._until(f"{number} pods are placed", so)

    async def reason(self, reason: str) -> None:
        await self._until(reason, lambda: self.record.status.get("reason") == reason)

    async def ends(self, state: str) -> None:
        await self._until(state, lambda: self.record.status.get("state") == state)

    async def gone(self) -> None:
        """Neither the job nor a pod of it is there."""
        await self._until("everything is gone", lambda: self.record.job is None and not self.record.pods, may_end=True)

    async def queued(self, condition: str, status: str) -> None:
        """A condition of its Workload has this status."""
        async with asyncio.timeout(max(0.0, self._deadline - time.monotonic())):
            while not await self._queue.holds(condition, status):  # noqa: ASYNC110 -- read from the API server
                await asyncio.sleep(LOOK_SECONDS)

    async def left_queue(self) -> None:
        """It has no Workload any more."""
        async with asyncio.timeout(max(0.0, self._deadline - time.monotonic())):
            while await self._queue.workload() is not None:  # noqa: ASYNC110 -- read from the API server
                await asyncio.sleep(LOOK_SECONDS)

    # What it does.

    async def admit(self) -> None:
        """Its queue admits it."""
        async with asyncio.timeout(max(0.0, self._deadline - time.monotonic())):
            await self._queue.admit()

    async def evict(self) -> None:
        """Its queue preempts it."""
        await self._queue.evict()

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
                each.agent.finish(code, "ValueError: on request" if code else "")

    async def warn(self, reason: str, message: str) -> None:
        """Record an event of the kubelet for every pod: why it does not start."""
        for number, pod in enumerate(self.record.pods.values()):
            about = {"kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
            fields = {"involvedObject": {**about, "namespace": self._jobs.namespace}, "lastTimestamp": now()}
            words = {"type": "Warning", "reason": reason, "message": message}
            await self._jobs.make("events", f"{self.name}.{number}", **fields, **words)

    async def start_pods(self) -> None:
        """Pods of a slow job start."""
        self._lane.kubelet.slow.discard(self.name)
        for each in self._lane.kubelet.known.values():
            if each.job == self.name:
                each.may_start.set()

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
            if State(status.get("state", "")).terminal and not may_end:
                raise EndedError(f"{status['state']}/{status['reason']}, waiting until {what}: {status['message']}")
            if time.monotonic() > self._deadline:
                shown = {key: status.get(key) for key in ("state", "reason", "message", "round", "rendezvous")}
                raise TimeoutError(f"waiting until {what}: {json.dumps(shown)}, pods {sorted(self.record.pods)}")
            await asyncio.sleep(LOOK_SECONDS)
        if not self._goes_on():
            wait, self._goes_on = self._goes_on, lambda: True
            await self._until(f"the fault is over, after {what}", wait)
