"""Events of pods that were lost: who stopped them and why is often nowhere else, and the events are gone in an hour.

They are read once for each pod that the status names as the cause of a round's end, a moment later, since events are
written after the fact. For a node that takes hundreds of pods along, that is one list: as for `KubeletEvents`, the API
server reads every event of the namespace for each list.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable

import msgspec

from torchyard.api.formatting import ESCAPES
from torchyard.kubernetes.cache.pod_events import SHARE, PodEvent, read_pod_events
from torchyard.kubernetes.cache.pod_record import PodRecord
from torchyard.kubernetes.client.api import Api
from torchyard.kubernetes.client.errors import Gone, NotFound, Rejected
from torchyard.reconcile.failures import MAX_EVENT, MAX_EVENTS
from torchyard.reconcile.ports import Unavailable

SOON_SECONDS, LATER_SECONDS = 2.0, 10.0
KEPT_SECONDS = 120.0
MOST_WANTED = 1024  # of a namespace at a time
FEW = 4  # pods that are asked for one by one
# How every pod starts, which explains no end.
STARTING = frozenset(
    {
        "AddedInterface",
        "Created",
        "FailedScheduling",
        "NotTriggerScaleUp",
        "Pulled",
        "Pulling",
        "Scheduled",
        "Started",
        "SuccessfulAttachVolume",
        "SuccessfulMountVolume",
        "TriggeredScaleUp",
        "WaitForFirstConsumer",
    }
)

_log = logging.getLogger(__name__)


class LostPods:
    """What the events of lost pods say.

    Args:
        api: the server.
        changed: called with the record of a pod once its events are known.
    """

    def __init__(self, api: Api, *, changed: Callable[[PodRecord], None]) -> None:
        self._api, self._changed = api, changed
        self._known: dict[str, tuple[str, ...]] = {}  # by pod uid
        self._wanted: defaultdict[str, dict[str, PodRecord]] = defaultdict(dict)  # by namespace, by pod uid
        self._readers: dict[str, asyncio.Task[None]] = {}

    def of(self, pod_uid: str) -> tuple[str, ...]:
        """Return the last events of a pod, oldest first; empty: none are known."""
        return self._known.get(pod_uid, ())

    def look(self, record: PodRecord) -> None:
        """Read the events of a pod that was lost, soon."""
        namespace = record.namespace
        wanted = self._wanted[namespace]
        if record.uid in self._known or record.uid in wanted or len(wanted) >= MOST_WANTED:
            return
        wanted[record.uid] = record
        if namespace not in self._readers:
            self._readers[namespace] = task = asyncio.create_task(self._read(namespace))
            task.add_done_callback(lambda _task: self._readers.pop(namespace, None))

    async def close(self) -> None:
        """Stop reading."""
        tasks = list(self._readers.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, namespace: str) -> None:
        """Read until nothing is wanted: each pod once soon and, if there are no events yet, once more later."""
        pause = SOON_SECONDS
        again: dict[str, PodRecord] = {}
        while self._wanted[namespace] or again:
            await asyncio.sleep(pause)
            fresh, self._wanted[namespace] = self._wanted[namespace], {}
            begun = time.monotonic()
            found = await self._events(namespace, [*fresh, *again])
            for uid, record in (again | fresh).items():
                if found.get(uid):
                    self._learn(record, found[uid])
            again = {uid: record for uid, record in fresh.items() if not found.get(uid)}
            pause = max(LATER_SECONDS if again else SOON_SECONDS, SHARE * (time.monotonic() - begun))
        del self._wanted[namespace]

    def _learn(self, record: PodRecord, events: list[PodEvent]) -> None:
        newest = sorted(events, key=lambda event: event.time)[-MAX_EVENTS:]
        self._known[record.uid] = tuple(map(_text, newest))
        asyncio.get_running_loop().call_later(KEPT_SECONDS, self._known.pop, record.uid, None)
        self._changed(record)

    async def _events(self, namespace: str, uids: list[str]) -> dict[str, list[PodEvent]]:
        """Return the events of these pods but for those of their start; empty if they cannot be read."""
        selectors = [f"involvedObject.uid={uid}" for uid in uids]
        found: dict[str, list[PodEvent]] = {uid: [] for uid in uids}
        try:
            for selector in selectors if len(uids) <= FEW else ["involvedObject.kind=Pod"]:
                async for event in read_pod_events(self._api, namespace, selector):
                    if event.involved_object.uid in found and event.reason not in STARTING:
                        found[event.involved_object.uid].append(event)
        except (Unavailable, Rejected, NotFound, Gone, msgspec.MsgspecError) as error:
            _log.warning("events of lost pods in %s cannot be read: %s", namespace, error)
        return found


def _text(event: PodEvent) -> str:
    """Return `2026-11-30T10:00:00Z Killing: Stopping container trainer (3 times)`."""
    message = ESCAPES.sub("", " ".join(event.message.split()))
    often = f" ({event.count} times)" if event.count and event.count > 1 else ""
    words = f"{event.time}Z {event.reason}: {message}"[: MAX_EVENT - len(often)] + often
    return "".join(char if char.isprintable() else " " for char in words)
