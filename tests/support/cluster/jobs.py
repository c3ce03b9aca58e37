"""TrainingJobs of one namespace, as their users see them."""

import json
from collections.abc import Callable
from typing import Any

from tests.support.cluster.operators import until

from torchyard.kubernetes.client.api import MERGE_PATCH, Api
from torchyard.kubernetes.client.errors import NotFound

ENDED = {"Succeeded", "Failed"}


def python(program: str) -> list[str]:
    """Return the command of a program without torch, whose import is most of what a short pod costs."""
    return ["python3", "-c", program]


SLEEPS = python("import time; time.sleep(600)")
COUNTS = """
import time
from torchyard_agent import report
for step in range(1, {steps} + 1):
    report(step=step, total_steps={steps})
    time.sleep({seconds})
"""


def counts(steps: int, seconds: float) -> list[str]:
    """Return the command of a program that makes steps of so many seconds each, in which it computes nothing."""
    return python(COUNTS.format(steps=steps, seconds=seconds))


class Jobs:
    """The jobs of a namespace."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.api, self.namespace = api, namespace
        self.path = f"/apis/torchyard.dev/v1alpha1/namespaces/{namespace}/trainingjobs"
        self.core = f"/api/v1/namespaces/{namespace}"

    async def submit(self, name: str, **spec: Any) -> None:
        body = {"apiVersion": "torchyard.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name}, "spec": spec}
        await self.api.request("POST", self.path, body=body)

    async def edit(self, name: str, **spec: Any) -> None:
        await self.api.request("PATCH", f"{self.path}/{name}", body={"spec": spec}, content_type=MERGE_PATCH)

    async def status(self, name: str) -> dict[str, Any]:
        """The status as it is now."""
        return json.loads(await self.api.request("GET", f"{self.path}/{name}")).get("status", {})

    async def until(self, name: str, condition: Callable[[dict[str, Any]], bool]) -> dict:
        """The status once it is so."""
        last: dict[str, Any] = {}

        async def holds() -> bool:
            nonlocal last
            last = await self.status(name)
            return bool(last.get("state")) and condition(last)  # the API server gives a new job an empty status

        await until(holds, why=lambda: f"{name}: {json.dumps(last, indent=1)}")
        return last

    async def trains(self, name: str, *, beyond: int = 0) -> dict[str, Any]:
        """The status once steps beyond this one are made."""

        def running(status: dict[str, Any]) -> bool:
            assert status.get("state") != "Failed", status.get("message")
            return status.get("state") == "Running" and status.get("progress", {}).get("step", 0) > beyond

        return await self.until(name, running)

    async def ends(self, name: str) -> dict[str, Any]:
        return await self.until(name, lambda status: status.get("state") in ENDED)

    async def pods(self, name: str) -> dict[str, dict[str, Any]]:
        """Pods of a job by name."""
        params = {"labelSelector": f"torchyard.dev/job={name}"}
        found = json.loads(await self.api.request("GET", f"{self.core}/pods", params=params))["items"]
        return {each["metadata"]["name"]: each for each in found}

    async def member(self, name: str, index: int) -> tuple[str, str]:
        """Name and node of the pod of this index that stays: not the first one, if a busy cluster lost that."""
        (found,) = (
            each
            for each in (await self.pods(name)).values()
            if each["metadata"]["labels"]["torchyard.dev/index"] == str(index)
            and "deletionTimestamp" not in each["metadata"]
            and each["status"]["phase"] == "Running"
        )
        return found["metadata"]["name"], found["spec"]["nodeName"]

    async def lose(self, name: str, index: int) -> None:
        """Delete the pod of this index without any grace."""
        pod, _ = await self.member(name, index)
        await self.delete_pod(pod, grace_seconds=0)

    async def announced(self, name: str, reason: str) -> list[str]:
        """Messages of a job's events of this reason, once there is one: they go out after the status they are of."""
        params = {"fieldSelector": f"involvedObject.name={name},involvedObject.kind=TrainingJob,reason={reason}"}
        found: list[dict[str, Any]] = []

        async def there() -> bool:
            found[:] = json.loads(await self.api.request("GET", f"{self.core}/events", params=params))["items"]
            return bool(found)

        await until(there, why=lambda: f"no event {reason} of {name}")
        return [each["message"] for each in found]

    async def make(self, kind: str, name: str, **fields: Any) -> None:
        """Another object of the namespace, by its plural."""
        await self.api.request("POST", f"{self.core}/{kind}", body={"metadata": {"name": name}, **fields})

    async def delete_pod(self, name: str, *, grace_seconds: int | None = None) -> None:
        body = {"gracePeriodSeconds": grace_seconds} if grace_seconds is not None else {}
        try:
            await self.api.request("DELETE", f"{self.core}/pods/{name}", body=body)
        except NotFound:
            return
