"""Pods that were placed and whose containers are not even created: what the kubelet reports about them in events.

A missing secret or claim, a volume that does not mount, a network that is not set up are nowhere in a pod's status.
Events are read only while there are such pods, once for all of a namespace: the API server has no index of them and
reads every event of the namespace for each list, so that a list a job costs the square of the jobs.
"""

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable

import msgspec

from torchyard.kubernetes.cache.pod_events import SHARE, PodEvent, read_pod_events
from torchyard.kubernetes.cache.pod_record import PodRecord
from torchyard.kubernetes.client.api import Api
from torchyard.kubernetes.client.errors import Gone, NotFound, Rejected
from torchyard.kubernetes.diagnostics import container_waiting
from torchyard.reconcile.ports import Unavailable

LOOK_SECONDS = 20.0
SOON_SECONDS = 2.0
WARNINGS = "type=Warning,involvedObject.kind=Pod,reason!=FailedScheduling"

_log = logging.getLogger(__name__)


class KubeletEvents:
    """What is known of pods that do not start.

    Args:
        api: the server.
        pods: those of a namespace that do not start now.
        changed: called with the record of a pod of which something new is known.
    """

    def __init__(
        self, api: Api, *, pods: Callable[[str], Iterable[PodRecord]], changed: Callable[[PodRecord], None]
    ) -> None:
        self._api, self._pods, self._changed = api, pods, changed
        self._known: dict[str, tuple[str, str]] = {}  # by job uid: what holds for one of its pods holds for the gang
        self._seen: dict[str, set[str]] = {}  # by namespace: jobs that the newest list was read for
        self._followed: dict[str, asyncio.Task[None]] = {}
        self._news: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)  # by namespace

    def why(self, job_uid: str) -> tuple[str, str]:
        """Return the reason code and evidence of why pods of this job do not start; empty: nothing is known."""
        return self._known.get(job_uid, ("", ""))

    def look(self, record: PodRecord) -> None:
        """Read the events of a pod that does not start."""
        namespace = record.namespace
        if namespace not in self._followed:
            self._followed[namespace] = task = asyncio.create_task(self._follow(namespace))
            task.add_done_callback(lambda _task: self._followed.pop(namespace, None))
        elif record.job_uid not in self._seen.get(namespace, ()):
            self._news[namespace].set()

    async def close(self) -> None:
        """Stop reading."""
        tasks = list(self._followed.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, namespace: str) -> None:
        while stuck := self._still(namespace):
            self._news[namespace].clear()
            begun = time.monotonic()
            found = await self._warnings(namespace, stuck)
            if found is not None:
                self._learn(stuck, found)
            await asyncio.sleep(max(SOON_SECONDS, SHARE * (time.monotonic() - begun)))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news[namespace].wait(), LOOK_SECONDS)
        self._news.pop(namespace, None)

    def _still(self, namespace: str) -> dict[str, PodRecord]:
        """Return the pods that do not start now, by uid; forget what was known of jobs that have none any more."""
        stuck = {record.uid: record for record in self._pods(namespace)}
        jobs = {record.job_uid for record in stuck.values()}
        for job in self._seen.pop(namespace, set()) - jobs:
            self._known.pop(job, None)
        if jobs:
            self._seen[namespace] = jobs
        return stuck

    def _learn(self, stuck: dict[str, PodRecord], found: dict[str, tuple[str, str]]) -> None:
        said = {stuck[uid].job_uid: why for uid, why in found.items()}
        for record in {record.job_uid: record for record in stuck.values()}.values():
            now = said.get(record.job_uid, ("", ""))
            if now != self.why(record.job_uid):
                self._known[record.job_uid] = now
                self._changed(record)

    async def _warnings(self, namespace: str, stuck: dict[str, PodRecord]) -> dict[str, tuple[str, str]] | None:
        """Return the newest warning with a known meaning, by pod uid; None: they cannot be read."""
        newest: dict[str, PodEvent] = {}
        try:
            async for event in read_pod_events(self._api, namespace, WARNINGS):
                uid = event.involved_object.uid
                known = newest.get(uid)
                if uid in stuck and container_waiting.event(event.reason, event.message)[0]:
                    newest[uid] = event if known is None or event.time > known.time else known
        except (Unavailable, Rejected, NotFound, Gone, msgspec.MsgspecError) as error:
            _log.warning("events of pods in %s cannot be read: %s", namespace, error)
            return None
        return {uid: container_waiting.event(event.reason, event.message) for uid, event in newest.items()}
