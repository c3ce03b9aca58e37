"""Places in the queues of Kueue: its visibility API is asked in the background, a few queues at a time.

Nothing waits for an answer: the plan reads the last one. What a job ahead will release is known from its Workload and
its status; of Workloads that belong to other kinds of jobs, only how many are ahead.
"""

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import msgspec

from torchyard.api.profiles.effective import as_pinned
from torchyard.api.resource import TrainingJob
from torchyard.api.values import since
from torchyard.kubernetes import kueue_objects
from torchyard.kubernetes.cache.gang_objects import GangObjects
from torchyard.kubernetes.cache.jobs import Jobs
from torchyard.kubernetes.client.api import Api
from torchyard.kubernetes.client.errors import Gone, NotFound, Rejected
from torchyard.kubernetes.kueue_objects import Pending, amounts, requested
from torchyard.reconcile.ports import Key, Unavailable
from torchyard.schedulers.kueue import LOCAL_QUEUE, POD_SET, Kueue
from torchyard.schedulers.kueue_slices import newest
from torchyard.schedulers.protocol import GangObject, ObjectCondition, QueuePosition
from torchyard.schedulers.queue_estimate import Amounts, ClusterQueue, Holder, Waiting, queue_positions

LOOK_SECONDS = 30.0
MAX_QUEUES = 50  # that are read at a time; the others keep their last answer until their turn
MAX_PENDING = 1000  # Workloads of a LocalQueue that are read
NOTHING = ObjectCondition()
T = TypeVar("T")
_log = logging.getLogger(__name__)
_Name = tuple[str, str]  # namespace and name of a LocalQueue


class KueueQueues:
    """Places of the jobs that wait in Kueue.

    Args:
        api: may get ClusterQueues and the pending Workloads of LocalQueues.
        jobs: all jobs.
        objects: their Workloads, and the LocalQueues.
        changed: called with the key of a job whose place has changed.
        clock: unix seconds.
    """

    def __init__(
        self, api: Api, jobs: Jobs, objects: GangObjects, *, changed: Callable[[Key], None], clock: Callable[[], float]
    ) -> None:
        self._api, self._jobs, self._objects, self._changed, self._clock = api, jobs, objects, changed, clock
        self._positions: dict[str, QueuePosition] = {}  # by job uid
        self._pending: dict[_Name, dict[str, int]] = {}  # names of Workloads -> place in the ClusterQueue, from 0
        self._cluster_queues: dict[_Name, str] = {}
        self._free: dict[str, Amounts] = {}
        self._active: dict[str, ObjectCondition] = {}  # by name of a ClusterQueue
        self._trouble = ""

    def position(self, job_uid: str) -> QueuePosition | None:
        """Return the place of a job as it was last seen; None: it does not wait, or Kueue does not tell."""
        return self._positions.get(job_uid)

    def condition(self, job: TrainingJob) -> ObjectCondition:
        """Return whether the ClusterQueue of a job is active, as it was last seen; empty: it is not known."""
        if not self._active or job.spec.scheduling.queue is None:
            return NOTHING
        return self._active.get(self._cluster_queue((job.metadata.namespace, job.spec.scheduling.queue)), NOTHING)

    async def run(self) -> None:
        """Ask until cancelled; without Kueue there is nothing to ask."""
        if not any(each.name == Kueue.name for each in self._objects.schedulers):
            return
        while True:
            await asyncio.sleep(LOOK_SECONDS * random.uniform(0.8, 1.0))  # noqa: S311 -- jitter
            if self._api.leading and self._jobs.synced.is_set():
                await self.look()

    async def look(self) -> None:
        """Read the queues that jobs wait in, and notify the jobs whose place has changed."""
        waiting, active = self._waiting(), dict(self._active)
        try:
            for queue in self._next(waiting):
                try:
                    await self._read(queue)
                except NotFound:  # the queue, or the API: it is optional
                    self._pending.pop(queue, None)
            self._trouble = ""
        except (Unavailable, Rejected, Gone, msgspec.MsgspecError) as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                _log.warning("places in the queues of Kueue are not known: %s", error)
            self._pending.clear()
        self._take(waiting, active)

    # What is asked.

    def _next(self, waiting: Mapping[_Name, list[tuple[TrainingJob, GangObject]]]) -> list[_Name]:
        """Return the queues to read now: those that were read longest ago come first."""
        read = [each for each in self._pending if each in waiting]
        self._pending = {each: self._pending[each] for each in read}
        return [*(each for each in waiting if each not in self._pending), *read][:MAX_QUEUES]

    async def _read(self, queue: _Name) -> None:
        of = self._cluster_queue(queue)
        if not of:
            self._pending.pop(queue, None)
            return
        known = await self._get(kueue_objects.cluster_queue_path(of), kueue_objects.ClusterQueue)
        self._free[of], self._active[of] = known.free(), known.active()
        pending = await self._get(kueue_objects.pending_path(*queue), Pending, {"limit": str(MAX_PENDING)})
        self._cluster_queues[queue] = of
        self._pending.pop(queue, None)  # the end of the order is the one that was read last
        self._pending[queue] = {each.metadata.name: each.position_in_cluster_queue for each in pending.items or ()}

    def _cluster_queue(self, queue: _Name) -> str:
        """Return the ClusterQueue of a LocalQueue from the cache; empty: the LocalQueue is not there."""
        namespace, name = queue
        local = self._objects.sources(Kueue(), namespace)[LOCAL_QUEUE.plural]
        return next((str(each.at("spec", "clusterQueue") or "") for each in local if each.name == name), "")

    async def _get(self, path: str, kind: type[T], params: dict[str, str] | None = None) -> T:
        return msgspec.json.decode(await self._api.request("GET", path, params=params), type=kind)

    # What follows from the answers.

    def _waiting(self) -> dict[_Name, list[tuple[TrainingJob, GangObject]]]:
        found: dict[_Name, list[tuple[TrainingJob, GangObject]]] = defaultdict(list)
        for job, there in self._workloads():
            queue = as_pinned(job).spec.scheduling.queue
            if queue is not None and not there.condition("QuotaReserved").holds:
                found[(job.metadata.namespace, queue)].append((job, there))
        return dict(found)

    def _workloads(self) -> Iterable[tuple[TrainingJob, GangObject]]:
        for job in self._jobs:
            if job.status.gang is None or job.status.gang.enforced_by != Kueue.name or job.status.state.terminal:
                continue
            if (there := newest(self._objects.of(job.metadata.uid))) is not None:
                yield job, there

    def _take(
        self, waiting: Mapping[_Name, list[tuple[TrainingJob, GangObject]]], active: Mapping[str, ObjectCondition]
    ) -> None:
        """Compute all places again and notify the jobs concerned. `active`: the conditions of queues before."""
        before, now = self._positions, self._clock()
        queues: dict[str, list[Waiting]] = defaultdict(list)
        keys: dict[str, Key] = {}
        news: set[str] = set()
        for queue, jobs in waiting.items():
            pending, of_queue = self._pending.get(queue, {}), self._cluster_queue(queue)
            is_news = active.get(of_queue, NOTHING) != self._active.get(of_queue, NOTHING)
            for job, there in jobs:
                keys[job.metadata.uid] = job.key
                news |= {job.metadata.uid} if is_news else set()
                if (position := pending.get(there.name)) is not None:
                    place = Waiting(uid=job.metadata.uid, position=position, amounts=requested(there))
                    queues[self._cluster_queues[queue]].append(place)
        holders = self._holders(now)
        self._positions = {}
        for name, places in queues.items():
            seen = ClusterQueue(
                free=self._free.get(name, {}), holders=tuple(holders.get(name, ())), waiting=tuple(places)
            )
            self._positions |= queue_positions(seen, now, before)
        for uid, key in keys.items():
            if uid in news or before.get(uid) != self._positions.get(uid):
                self._changed(key)

    def _holders(self, now: float) -> dict[str, list[Holder]]:
        found: dict[str, list[Holder]] = defaultdict(list)
        for job, there in self._workloads():
            if not there.condition("QuotaReserved").holds:
                continue
            assigned = there.at("status", "admission", "podSetAssignments") or ()
            usage = next((each.get("resourceUsage") for each in assigned if each.get("name") == POD_SET), None)
            holder = Holder(amounts=amounts(usage or {}), ends=ends(job, now))
            found[str(there.at("status", "admission", "clusterQueue") or "")].append(holder)
        return found


def ends(job: TrainingJob, now: float) -> float | None:
    """Return when a running job ends by the forecast in its status, unix seconds; None: it has none."""
    left = job.status.progress.eta_seconds
    return None if left is None else since(job.status.last_update_time, now) + left
