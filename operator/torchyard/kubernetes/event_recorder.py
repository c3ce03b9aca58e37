"""Events of jobs and sweeps, written in the background: bounded, one for a transition, never awaited by a reconcile."""

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

from torchyard.api.names import MAX_JOB_NAME
from torchyard.api.reasons import one_line
from torchyard.api.resource import TrainingJob
from torchyard.api.values import rfc3339
from torchyard.kubernetes.client.api import Api
from torchyard.kubernetes.client.errors import AlreadyExists, Conflict, Gone, NotFound, Rejected
from torchyard.reconcile.actions import EmitEvent
from torchyard.reconcile.ports import Unavailable
from torchyard.sweeps.events import SweepEvent
from torchyard.sweeps.resource import TrainingSweep

MAX_WAITING = 2000
REPEAT_SECONDS = 60.0
MAX_MESSAGE = 1024
WRITERS = 4
TRIES = 4
BASE_SECONDS = 0.5
COMPONENT = "torchyard-operator"
Subject = TrainingJob | TrainingSweep

_log = logging.getLogger(__name__)


class Recorder:
    """Writes events in their order.

    Args:
        api: the server.
        reporter: name of this operator process, for `reportingInstance`.
        clock: unix seconds.
    """

    def __init__(self, api: Api, *, reporter: str, clock: Callable[[], float] = time.time) -> None:
        self.dropped = 0
        self._api, self._reporter, self._clock = api, reporter, clock
        self._waiting: deque[tuple[str, dict[str, Any]]] = deque()
        self._warned: OrderedDict[tuple[str, str, str], float] = OrderedDict()  # when a job was last warned of what
        self._added = asyncio.Event()

    def record(self, job: Subject, event: EmitEvent | SweepEvent) -> None:
        """Queue an event. If too many are queued, the oldest is dropped: the status has what matters."""
        now = self._clock()
        if event.type == "Warning" and self._repeats(job, event, now):
            return
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append((job.metadata.namespace, document(job, event, now=now, reporter=self._reporter)))
        self._added.set()

    def _repeats(self, job: Subject, event: EmitEvent | SweepEvent, now: float) -> bool:
        """Return whether the same warning was recorded a moment ago: a problem that comes and goes is one event."""
        what = (job.metadata.uid, event.reason, event.message)
        if now - self._warned.get(what, -REPEAT_SECONDS) < REPEAT_SECONDS:
            return True
        self._warned[what] = now
        self._warned.move_to_end(what)
        if len(self._warned) > MAX_WAITING:
            self._warned.popitem(last=False)
        return False

    async def run(self) -> None:
        """Write until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(WRITERS):
                group.create_task(self._write_all())

    async def _write_all(self) -> None:
        while True:
            while not self._waiting:
                self._added.clear()
                await self._added.wait()
            namespace, event = self._waiting.popleft()
            await self._write(namespace, event)

    async def _write(self, namespace: str, event: dict[str, Any]) -> None:
        error: Exception | None = None
        for attempt in range(TRIES):
            try:
                await self._api.request("POST", f"/api/v1/namespaces/{namespace}/events", body=event)
            except AlreadyExists:
                return  # an answer was lost
            except (Rejected, NotFound, Conflict, Gone) as refused:
                error = refused
                break
            except Unavailable as away:
                error = away
                await asyncio.sleep(max(away.retry_after or 0.0, BASE_SECONDS * 2.0**attempt))
            else:
                return
        self.dropped += 1
        _log.warning(
            "event %s of %s/%s is lost: %s", event["reason"], namespace, event["involvedObject"]["name"], error
        )


def document(job: Subject, event: EmitEvent | SweepEvent, *, now: float, reporter: str) -> dict[str, Any]:
    """Return the event; its name contains the object's version in the plan, so that a second write creates none."""
    meta = job.metadata
    identity = f"{meta.uid}\n{meta.resource_version}\n{event.reason}\n{event.message}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    moment = rfc3339(now)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{meta.name[:MAX_JOB_NAME]}.{digest}", "namespace": meta.namespace},
        "involvedObject": {
            "apiVersion": job.api_version,
            "kind": job.kind,
            "name": meta.name,
            "namespace": meta.namespace,
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
        },
        "type": event.type,
        "reason": event.reason,
        "message": one_line(event.message)[:MAX_MESSAGE],  # `kubectl` prints it, and names in it are users'
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": reporter[:128],
    }
