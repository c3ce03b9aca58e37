"""Whether an event costs more among a thousand jobs than among ten: `python benchmarks/events.py [JOBS [TURNS]]`.

Controller, queue, caches and informer are those of the operator; what it talks to is a server in memory. An event is a
line of the watch of pods, an object of the watch of jobs, or news of an agent; each brings about one look at its job.
"""

import asyncio
import contextlib
import itertools
import re
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec
import uvloop
from msgspec.structs import replace
from plan import START, Memory, report

from torchyard.api.resource import TrainingJob, job_document
from torchyard.api.values import rfc3339
from torchyard.app.memory_tuning import leave_caches_alone
from torchyard.kubernetes.cache import pods
from torchyard.kubernetes.cache.jobs import Jobs
from torchyard.kubernetes.client.api import Api
from torchyard.kubernetes.cluster import KubeCluster
from torchyard.kubernetes.manifests.names import Site
from torchyard.reconcile.loop.controller import Controller, Settings
from torchyard.reconcile.observed import Agent

FEW, PODS = 10, 8
START_SECONDS = 900.0
EVENTS = 2000
TYPE = {"apiVersion": "torchyard.dev/v1alpha1", "kind": "TrainingJob"}
SITE = Site(operator_url="https://127.0.0.1:1", ca_pem="x" * 700, agent_image="agent", trainer_image="trainer")


class Server(Api):
    """An API server in memory: every pod runs at once and its agent is ready; events of watches are sent by hand."""

    def __init__(self, agents: Memory) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.told: asyncio.Queue[bytes] = asyncio.Queue()
        self._agents, self._versions = agents, itertools.count(1)

    def version(self) -> str:
        return str(next(self._versions))

    async def request(self, verb: str, path: str, **options: Any) -> bytes:
        if verb == "GET":
            return b'{"metadata": {"resourceVersion": "1"}, "items": []}'
        if verb == "POST" and path.endswith("/pods"):
            pod = msgspec.json.encode(self._run(options["body"]))
            self.told.put_nowait(b'{"type": "ADDED", "object": %b}' % pod)
            return pod
        assert path.endswith(("/status", "/events")), (verb, path)
        return msgspec.json.encode({"metadata": {"resourceVersion": self.version()}})

    @property
    def busy(self) -> bool:
        return False

    async def stream(self, path: str, params: Mapping[str, str]) -> AsyncIterator[bytes]:
        del path, params
        while True:
            yield await self.told.get()

    def _run(self, pod: dict[str, Any]) -> dict[str, Any]:
        uid, started = f"uid-{pod['metadata']['name']}", rfc3339(START)
        pod["metadata"] |= {"uid": uid, "resourceVersion": self.version(), "creationTimestamp": started}
        pod["spec"]["nodeName"] = f"node-{len(self.pods) % 50}"
        trainer = {"name": "trainer", "state": {"running": {"startedAt": started}}}
        pod["status"] = {"phase": "Running", "podIP": "10.0.0.1", "containerStatuses": [trainer]}
        self.pods[uid] = pod
        self._agents.agents[uid] = Agent(
            pod_uid=uid, instance="1", state="ready", seen=START, address="10.0.0.1", master_port=29500
        )
        return pod


class Fleet:
    """So many training jobs, reconciled by one controller."""

    def __init__(self, jobs: int) -> None:
        self.agents = Memory()
        self.server = Server(self.agents)
        self.now, self.looks = START + 1, 0
        self.jobs = Jobs()
        self.cluster = KubeCluster(self.server, self.jobs, SITE, clock=self._clock)
        self.controller = Controller(
            self.cluster,
            self.agents,
            clock=self._clock,
            settings=Settings(workers=64, in_flight=512, resync=3600.0),
            observe=self._looked,
        )
        self._handlers = contextlib.ExitStack()
        self._handlers.enter_context(self.jobs.subscribed(self.controller.enqueue))
        self._wanted, self._enough, self._moments = 0, asyncio.Event(), itertools.count(1)
        self._count = jobs

    async def start(self) -> None:
        self._tasks = [asyncio.create_task(self.cluster.run()), asyncio.create_task(self.controller.run())]
        await self.cluster.synced()
        for number in range(self._count):
            meta = {"name": f"job-{number}", "namespace": "team", "uid": f"uid-{number}"}
            meta |= {"resourceVersion": self.server.version(), "creationTimestamp": rfc3339(START)}
            spec = {"nodes": PODS, "command": ["torchrun", "train.py"]}
            self.jobs.record("ADDED", {**TYPE, "metadata": meta, "spec": spec})
        deadline = time.monotonic() + START_SECONDS
        while self.controller.depth or any(job.status.state != "Running" for job in self.jobs):
            assert time.monotonic() < deadline, {job.status.state for job in self.jobs}
            if not self.controller.depth:
                self.now += 1.0
                for job in self.jobs:
                    self.controller.enqueue(job.key)
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def cost(self, events: list[Callable[[], None]]) -> float:
        """Microseconds of CPU an event, one job at a time or ten at once, never two of one job."""
        begun = time.process_time_ns()
        for first in range(0, len(events), FEW):
            some = events[first : first + FEW]
            self._enough.clear()
            self._wanted = self.looks + len(some)
            for event in some:
                event()
            await self._enough.wait()
        return (time.process_time_ns() - begun) / 1000 / len(events)

    def pod_events(self) -> list[Callable[[], None]]:
        """Restart a container: what the plan sees of the pod changes, and no action follows."""
        lines = []
        for number, job in self._turns():
            uid = f"uid-{job.metadata.name}-0-{number % PODS}"
            pod = self.server.pods[uid]
            pod["metadata"]["resourceVersion"] = self.server.version()
            state = pod["status"]["containerStatuses"][0]["state"]["running"]
            state["startedAt"] = rfc3339(START + next(self._moments))
            lines.append(msgspec.json.encode({"type": "MODIFIED", "object": pod}))
        return [lambda line=line: self.server.told.put_nowait(line) for line in lines]

    def job_events(self) -> list[Callable[[], None]]:
        """A label that was changed."""
        documents = []
        for number, job in self._turns():
            document = msgspec.json.decode(msgspec.json.encode(job_document(job)))
            document["metadata"] |= {"resourceVersion": self.server.version(), "labels": {"turn": str(number)}}
            documents.append(document)
        return [lambda document=document: self.jobs.record("MODIFIED", document) for document in documents]

    def agent_events(self) -> list[Callable[[], None]]:
        """Another step, within the interval of figures."""

        def event(number: int, job: TrainingJob) -> None:
            uid = f"uid-{job.metadata.name}-0-0"
            agent = self.agents.agents[uid]
            self.agents.agents[uid] = replace(agent, reports=(report(agent.reports[0].rank, 20 + number),))
            self.controller.enqueue(job.key)

        return [lambda number=number, job=job: event(number, job) for number, job in self._turns()]

    def _turns(self) -> list[tuple[int, TrainingJob]]:
        return list(enumerate(itertools.islice(itertools.cycle(list(self.jobs)), EVENTS)))

    def _looked(self, result: str, _seconds: float) -> None:
        assert result == "done", result
        self.looks += 1
        if self.looks == self._wanted:
            self._enough.set()

    def _clock(self) -> float:
        return self.now


async def main(many: int, turns: int) -> None:
    pods.SOON_SECONDS = 0.0  # news that may wait for more of its kind would only make this take longer
    few, fleet = Fleet(FEW), Fleet(many)
    for each in (few, fleet):
        await each.start()
    leave_caches_alone()
    print(f"| CPU of an event, microseconds, median of {turns} | {FEW} jobs | {many} jobs | ratio |\n|---|---|---|---|")
    for name in ("pod_events", "job_events", "agent_events"):
        costs: dict[Fleet, list[float]] = {few: [], fleet: []}
        for _ in range(turns):
            for each, found in costs.items():
                found.append(await each.cost(getattr(each, name)()))
        ratio = statistics.median(after / before for before, after in zip(*costs.values(), strict=True))
        middle = " | ".join(f"{statistics.median(found):.0f}" for found in costs.values())
        print(f"| {re.sub('_.*', '', name)} | {middle} | {ratio:.2f} |", flush=True)
    for each in (few, fleet):
        await each.stop()


if __name__ == "__main__":
    given = [int(each) for each in sys.argv[1:]]
    uvloop.run(main(*given, *(1000, 7)[len(given) :]))
