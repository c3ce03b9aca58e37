"""A real training job that jobs of a higher priority preempt: what each preemption costs it."""

import contextlib
import json
import secrets
from collections.abc import AsyncIterator
from typing import Any

from msgspec import Struct
from tests.support.cluster.gangs import queues
from tests.support.cluster.jobs import Jobs, counts
from tests.support.cluster.training import Training

from torchyard.api.values import amount
from torchyard.kubernetes.client.api import Api

ENDLESS = 1_000_000
GPUS = "nvidia.com/gpu.present"  # label of the workers of the test bed
PATH = "/apis/scheduling.k8s.io/v1/priorityclasses"


class Loss(Struct, frozen=True):
    """What one preemption cost: steps made in the round that it ended, steps to repeat, whether it was charged."""

    made: int
    repeated: int
    charged: bool


class Contest:
    """A job of a low priority that fills the cluster, or its queue, and is preempted again and again.

    Args:
        jobs: of the namespace.
        scheduling: of both jobs; the priority is added.
        memory: of a pod, so that each node holds one.
        classes: of priority, the lower one first.
    """

    def __init__(self, jobs: Jobs, scheduling: dict[str, Any], memory: str, classes: tuple[str, str]) -> None:
        self.jobs, self.low, self.high = jobs, *classes
        self.scheduling, self.resources = scheduling, {"memory": memory}
        self.training = Training(jobs, ENDLESS, **self._fields(self.low))

    async def preempt(self) -> Loss:
        """Preempt the job once it has saved in its round; return what that cost once it makes steps again."""
        before = await self.training.gained()
        number = before["round"]
        await self.jobs.submit("urgent", nodes=2, command=counts(3, 0.5), **self._fields(self.high))
        await self.jobs.until(self.training.name, lambda now: now["state"] == "Suspended" or now["round"] > number)
        await self.jobs.ends("urgent")
        await self.jobs.api.request("DELETE", f"{self.jobs.path}/urgent", body={})
        after = await self.jobs.until(
            self.training.name, lambda now: now["state"] == "Running" and now["round"] > number
        )
        ended, newest = (
            next(each for each in after["attempts"] if each["round"] == wanted) for wanted in (number, after["round"])
        )
        return Loss(
            made=ended["endStep"] - ended.get("startStep", 0),
            repeated=ended["endStep"] - newest.get("startStep", 0),
            charged=bool(after.get("restarts", {}).get("counted", 0)),
        )

    def _fields(self, priority: str) -> dict:
        return {"resources": self.resources, "scheduling": {**self.scheduling, "priorityClass": priority}}


@contextlib.asynccontextmanager
async def contest(api: Api, namespace: str, scheduler: str) -> AsyncIterator[Contest]:
    """Start the job on the two workers of the test bed, with Kueue or Volcano."""
    nodes = json.loads(await api.request("GET", "/api/v1/nodes", params={"labelSelector": GPUS}))
    memory = int(min(amount(node["status"]["allocatable"]["memory"]) for node in nodes["items"]) * 6 / 10)
    stem = f"ty-{secrets.token_hex(3)}"
    classes = (f"{stem}-low", f"{stem}-high")
    async with contextlib.AsyncExitStack() as stack:
        for name, value in zip(classes, (1, 1000), strict=True):
            await api.request("POST", PATH, body={"metadata": {"name": name}, "value": value})
            stack.push_async_callback(api.request, "DELETE", f"{PATH}/{name}", body={})
        scheduling: dict[str, Any] = {"gang": scheduler, "nodeSelector": {GPUS: "true"}}  # no node that is played
        if scheduler == "kueue":
            await stack.enter_async_context(queues(api, namespace, memory=str(2 * memory)))
            scheduling["queue"] = "team"
        one = Contest(Jobs(api, namespace), scheduling, str(memory), classes)
        await one.training.start()
        yield one
