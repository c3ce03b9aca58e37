"""Where the time of one recovery goes: what the API server, the kubelet, the agent and the operator did, and when.

Three sources on one clock (nodes of kind share that of this machine): watches of the pods and of the job, with the time
at which each change arrives here; the output of the containers, to the nanosecond; the operator's decisions.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table
from tests.support.cluster.jobs import Jobs

from torchyard.kubernetes.client.errors import Gone, NotFound, Rejected
from torchyard.reconcile.ports import Unavailable

# What the agent of a new pod says, and what it means.
SAYINGS = (
    ("has imported torch", "torch is imported (warm start)"),
    ("inputs:", "inputs are there"),
    (": 1 of 2 nodes", "agent starts the workers of the next round"),
)


class Moment(NamedTuple):
    """Something that happened: unix seconds, and what."""

    time: float
    what: str


class Timeline:
    """What happens to the pods of one job and to the job itself.

    Args:
        jobs: of the namespace.
        name: of the job.
    """

    def __init__(self, jobs: Jobs, name: str) -> None:
        self._jobs, self._name = jobs, name
        self.moments: list[Moment] = []
        self._seen: set[str] = set()
        self.created = ""  # name of the newest pod

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator["Timeline"]:
        """Follow the job within the block, from its present state on."""
        jobs = self._jobs
        pods = asyncio.create_task(self._follow(f"{jobs.core}/pods", f"torchyard.dev/job={self._name}", self._pod))
        job = asyncio.create_task(self._follow(jobs.path, "", self._job))
        try:
            yield self
        finally:
            for task in (pods, job):
                task.cancel()
            await asyncio.gather(pods, job, return_exceptions=True)

    async def read_output(self) -> None:
        """Add what the containers of the newest pod wrote."""
        for container in ("agent", "trainer"):
            params = {"container": container, "timestamps": "true"}
            with contextlib.suppress(Rejected, NotFound):
                path = f"{self._jobs.core}/pods/{self.created}/log"
                text = (await self._jobs.api.request("GET", path, params=params, accept="*/*")).decode(errors="replace")
                self.moments += _said(container, text)

    def decided(self, log: Path) -> None:
        """Add the decisions that an operator logged about the job."""
        for line in log.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if entry.get("logger") == "torchyard.decisions" and entry.get("job", "").endswith(self._name):
                    what = ", ".join(map(str, entry["actions"])) if isinstance(entry["actions"], list) else ""
                    at = datetime.fromisoformat(entry["time"]).timestamp()
                    self.moments.append(Moment(at, f"operator: {entry['reason']} ({what})"[:100]))

    async def _follow(self, path: str, selector: str, take: Any) -> None:
        listed = json.loads(await self._jobs.api.request("GET", path, params={"labelSelector": selector}))
        for each in listed["items"]:
            take("LISTED", each)
        params = {"watch": "1", "labelSelector": selector, "resourceVersion": listed["metadata"]["resourceVersion"]}
        with contextlib.suppress(Unavailable, Gone):
            async for line in self._jobs.api.stream(path, params):
                event = json.loads(line)
                take(event["type"], event["object"])

    def _note(self, key: str, what: str, *, silent: bool) -> None:
        if key not in self._seen:
            self._seen.add(key)
            if not silent:
                self.moments.append(Moment(time.time(), what))

    def _pod(self, kind: str, pod: dict[str, Any]) -> None:
        meta, status = pod["metadata"], pod.get("status", {})
        name, silent = meta["name"], kind == "LISTED"
        if kind == "ADDED":
            self.created = name
        self._note(f"{name} there", f"{name} is created", silent=silent)
        states = {
            "is being deleted": "deletionTimestamp" in meta,
            "is gone": kind == "DELETED",
            "has a node": bool(pod["spec"].get("nodeName")),
            **{f"has condition {each['type']}": each["status"] == "True" for each in status.get("conditions", ())},
        }
        for each in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
            states |= {
                f"container {each['name']} is {state}": True for state in each.get("state", {}) if state != "waiting"
            }
        for what, holds in states.items():
            if holds:
                self._note(f"{name} {what}", f"{name} {what}", silent=silent)

    def _job(self, kind: str, job: dict[str, Any]) -> None:
        status = job.get("status", {})
        if job["metadata"]["name"] == self._name:
            ready = status.get("nodes", {}).get("ready", 0)
            for what in (
                f"round {status.get('round', 0)}, {status.get('state', '')}, {status.get('reason', '')}",
                f"round {status.get('round', 0)}, agents ready: {ready}",
            ):
                self._note(what, f"status: {what}", silent=kind == "LISTED")


def table(name: str, struck: float, moments: list[Moment]) -> Table:
    """Return the moments since the blow, in order, with the time that each took."""
    shown = Table(title=f"one recovery: {name}", title_justify="left")
    for column in ("s", "+", "what"):
        shown.add_column(column, justify="left" if column == "what" else "right")
    before = struck
    for moment in sorted(moments):
        if moment.time >= struck:
            shown.add_row(f"{moment.time - struck:.2f}", f"{moment.time - before:.2f}", moment.what)
            before = moment.time
    return shown


def _said(container: str, text: str) -> Iterator[Moment]:
    lines = [line.partition(" ") for line in text.splitlines()]
    for number, (stamp, _, words) in enumerate(lines):
        meaning = next((meaning for saying, meaning in SAYINGS if saying in words), None)
        if number == 0 or meaning is not None:
            with contextlib.suppress(ValueError):
                at = datetime.fromisoformat(f"{stamp[:26]}+00:00").timestamp()
                yield Moment(at, f"{container}: {meaning or 'first line of output'}")
