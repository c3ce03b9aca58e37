"""The pods of all jobs: followed by informers, with what their nodes and their events add to it."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from decimal import Decimal

from msgspec.structs import replace

from torchyard.api.reasons import Reason
from torchyard.api.resource import ObjectMeta
from torchyard.kubernetes.cache import nodes
from torchyard.kubernetes.cache.informer import Informer
from torchyard.kubernetes.cache.kubelet_events import KubeletEvents
from torchyard.kubernetes.cache.lost_pods import LostPods
from torchyard.kubernetes.cache.node_notices import NodeNotices
from torchyard.kubernetes.cache.nodes import Nodes
from torchyard.kubernetes.cache.orphans import Orphans
from torchyard.kubernetes.cache.pod_record import PodRecord, read
from torchyard.kubernetes.client.api import Api
from torchyard.kubernetes.diagnostics import node_fit
from torchyard.kubernetes.diagnostics.capacity import Amount, Resource, Room, cores, gibibytes, gpus, room
from torchyard.kubernetes.diagnostics.node_fit import Demands
from torchyard.kubernetes.manifests import names
from torchyard.kubernetes.objects import KubePod, Node
from torchyard.reconcile.observed import Pod
from torchyard.reconcile.ports import Key

# A label of the operator alone: policies may change labels such as `managed-by`.
SELECTOR = names.JOB_UID
# Longer than an operator takes to close a round, with the API server away for a moment.
VANISHED_SECONDS = 60.0
BUSY_SECONDS = 8.0
SOON_SECONDS = 0.2
_RESOURCES: dict[str, Resource] = {
    Reason.INSUFFICIENT_GPU: Resource(lambda amounts: amounts.gpu, gpus),
    Reason.INSUFFICIENT_CPU: Resource(lambda amounts: amounts.cpu, cores),
    Reason.INSUFFICIENT_MEMORY: Resource(lambda amounts: amounts.memory, gibibytes),
}


class Pods:
    """Pods by job uid.

    Args:
        api: the server.
        namespaces: the watched ones; none: all.
        made: whether the operator created a pod; any other pod is left alone, whatever its labels are.
        changed: called with the key of a job when what the plan sees of its pods changed, and with the seconds in which
            more of the same is to be expected.
        gone: called with the uid of a pod whose object is gone.
        notices: taints and conditions of nodes that announce that they leave; (): nodes are not watched.
        clock: unix seconds.
    """

    def __init__(
        self,
        api: Api,
        namespaces: Iterable[str],
        *,
        made: Callable[[PodRecord], bool],
        changed: Callable[[Key, float], None],
        gone: Callable[[str], None],
        notices: Collection[str] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._made, self._changed, self._gone, self._clock = made, changed, gone, clock
        self._all: dict[str, PodRecord] = {}  # by pod uid
        self._jobs: defaultdict[str, dict[str, PodRecord]] = defaultdict(dict)  # by job uid, by pod uid
        self._uids: defaultdict[Key, set[str]] = defaultdict(set)  # of jobs that have pods, by namespace and name
        self._on_node: defaultdict[str, dict[str, PodRecord]] = defaultdict(dict)
        self._vanished: defaultdict[str, dict[str, PodRecord]] = defaultdict(dict)  # by job uid, by pod uid
        self._started: dict[str, float] = {}  # by node: when its kubelet was last seen to start a pod
        self._nodes = Nodes(api, suspicion=self._suspicion, changed=self._node_changed, measured=self._measured)
        self._notices = NodeNotices(api, notices, changed=self._node_changed, clock=clock) if notices else None
        self._stuck = KubeletEvents(api, pods=self._stuck_pods, changed=self._notify)
        self._lost = LostPods(api, changed=self._notify)
        self._strays = Orphans(api, there=self._keep, over=self._lose)
        self._ours: set[str] = set()  # uids of pods that the operator is known to have created
        self._dead: set[str] = set()  # pod uids that are gone according to the API server itself
        paths = {name: f"/api/v1/namespaces/{name}/pods" for name in namespaces} or {"": "/api/v1/pods"}
        self._informers: dict[str, Informer[KubePod, PodRecord]] = {
            name: Informer(api, path, of=KubePod, read=read, changed=self._take, selector=SELECTOR)
            for name, path in paths.items()
        }

    def __len__(self) -> int:
        """Pods there are."""
        return len(self._all)

    async def run(self) -> None:
        """Follow pods until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for informer in self._informers.values():
                    group.create_task(informer.run())
                if self._notices is not None:
                    group.create_task(self._notices.run())
        finally:
            await self._nodes.close()
            await self._stuck.close()
            await self._lost.close()
            await self._strays.close()

    async def synced(self) -> None:
        """Return once every pod that exists is known."""
        for informer in self._informers.values():
            await informer.synced.wait()

    @property
    def ready(self) -> bool:
        """Whether every pod that exists is known."""
        return all(informer.synced.is_set() for informer in self._informers.values())

    def of(self, job_uid: str) -> tuple[Pod, ...]:
        """Return the pods of a job, by index, and for a while those that vanished, as ended, to name a lost one."""
        known = (*self._own(job_uid), *self._vanished.get(job_uid, {}).values())
        found = sorted(known, key=lambda each: (each.pod.index, each.pod.incarnation))
        return tuple(self._pod(record) for record in found)

    def member(self, pod_uid: str) -> PodRecord | None:
        """Return a live pod that the operator created; None: there is no such pod, or it has ended."""
        record = self._all.get(pod_uid)
        return record if record is not None and record.pod.alive and self._is_ours(record) else None

    def forged(self, job_uid: str | None = None) -> list[PodRecord]:
        """Return pods that name this job, or any job, as their controller and that the operator did not create."""
        known = self._all.values() if job_uid is None else self._jobs.get(job_uid, {}).values()
        return [record for record in known if not self._is_ours(record)]

    def _is_ours(self, record: PodRecord) -> bool:
        """Return whether the operator created a pod; once this is known, it holds until the pod is gone."""
        if record.uid not in self._ours and self._made(record):
            self._ours.add(record.uid)
        return record.uid in self._ours

    def _own(self, job_uid: str) -> list[PodRecord]:
        return [record for record in self._jobs.get(job_uid, {}).values() if self._is_ours(record)]

    def predecessors(self, job: ObjectMeta) -> list[str]:
        """Return the names of live pods of a former job of this name: they may still write into its folder.

        Only those that the operator created; what has been orphaned has no job any more.
        """
        former = self._uids.get((job.namespace, job.name), set()) - {job.uid}
        pods = (record for uid in former for record in self._jobs.get(uid, {}).values())
        return sorted(record.pod.name for record in pods if record.pod.alive and self._is_ours(record))

    def explain_loss(self, job_uid: str, name: str) -> None:
        """Read the events of a pod that ended, is being deleted or vanished, if it did."""
        for record in (*self._own(job_uid), *self._vanished.get(job_uid, {}).values()):
            if record.pod.name == name and (record.pod.deleting or record.pod.phase == "Failed"):
                self._lost.look(record)

    def leaving_nodes(self) -> list[str]:
        """Return the nodes that announce that they leave, the newest notice first."""
        return self._notices.nodes() if self._notices is not None else []

    def version(self, pod_uid: str) -> int | None:
        """Return the version of a pod as it was last seen; None: it is not known."""
        record = self._all.get(pod_uid)
        return record.version if record is not None else None

    # Writes of our own.

    def put(self, namespace: str, document: bytes) -> int | None:
        """Apply the answer to a write; return the version, None if it is not a pod of the operator."""
        kept = self._informer(namespace).put(document)
        return kept.version if kept is not None else None

    def position(self, namespace: str) -> int:
        """Return the version up to which the watch has reported everything."""
        return self._informer(namespace).version

    def forget(self, pod_uid: str) -> None:
        """Record that, according to the API server, this pod is gone."""
        record = self._all.get(pod_uid)
        if record is not None:
            self._dead.add(pod_uid)
            self._informer(record.namespace).bury(pod_uid)
            self._dead.discard(pod_uid)

    async def refresh(self, namespace: str, selector: str, job_uid: str) -> None:
        """List the pods of one job and correct what is known of them."""
        await self._informer(namespace).refresh(selector, lambda record: record.job_uid == job_uid)

    async def sweep(self) -> None:
        """Read what no watch reported.

        Raises:
            Unavailable, Rejected, NotFound, Gone: pods could not be listed.
        """
        await asyncio.gather(*(informer.sweep() for informer in self._informers.values()))

    # What changes.

    def _informer(self, namespace: str) -> Informer[KubePod, PodRecord]:
        return self._informers.get(namespace) or self._informers[""]

    def _take(self, before: PodRecord | None, after: PodRecord | None) -> None:
        if before is not None:
            self._all.pop(before.uid, None)
            _drop(self._jobs, before.job_uid, before.uid)
            if before.job_uid not in self._jobs:
                _discard(self._uids, (before.namespace, before.job_name), before.job_uid)
            _drop(self._on_node, before.pod.node, before.uid)
        if after is None:
            assert before is not None
            if before.pod.node not in self._on_node:
                self._started.pop(before.pod.node, None)
            made = self._is_ours(before)
            self._ours.discard(before.uid)
            self._gone(before.uid)
            if not made:
                return
            if not before.pod.alive or before.pod.deleting or before.uid in self._dead:
                self._lose(before)
            else:
                self._keep(before)
                self._strays.ask(before)
            return
        if before is not None and before.job_uid != after.job_uid:  # an owner reference can be edited
            self._ours.discard(after.uid)
            self._gone(after.uid)
        self._uids[(after.namespace, after.job_name)].add(after.job_uid)
        self._all[after.uid] = self._jobs[after.job_uid][after.uid] = self._on_node[after.pod.node][after.uid] = after
        if before is not None and (before.pod.phase, after.pod.phase) == ("Pending", "Running"):
            self._started[after.pod.node] = self._clock()
        news = before is None or before.pod != after.pod or before.marked != after.marked
        # A message about nodes waits for the names and figures that go into it.
        if news and not (after.demands is not None and self._nodes.measure()):
            # The pods of a gang are placed and start within moments of each other: that is one piece of news.
            self._notify(after, SOON_SECONDS if _is_well(after.pod) else 0.0)
        self._consider(after.uid)

    def _keep(self, record: PodRecord, why: str = "") -> None:
        """Keep a pod in the way of another one until it is known to be gone.

        Without `why` the server is being asked: a round that ended now could not name the cause.
        """
        known = {"reason": Reason.POD_LOST, "message": why} if why else {"unconfirmed": True}
        going = replace(record.pod, deleting=True, **known)
        self._vanished[record.job_uid][record.uid] = replace(record, pod=going)
        if why:
            self._notify(record)

    def _lose(self, record: PodRecord, why: str = "") -> None:
        """Record that a pod is gone."""
        self._remember(record, why)
        self._notify(record)

    def _remember(self, record: PodRecord, why: str) -> None:
        """Keep a pod whose object went before its end could be read: deleted by force, with its node, or fast."""
        pod = record.pod
        if pod.phase == "Succeeded":
            return
        if pod.alive:
            took = pod.displaced
            reason, message = (
                (took, pod.message) if took is not None else (Reason.POD_LOST, why or "its pod no longer exists")
            )
            pod = replace(pod, phase="Failed", finished=self._clock(), reason=reason, message=message)
        ended = replace(pod, deleting=True)
        self._vanished[record.job_uid][record.uid] = replace(record, pod=ended)
        asyncio.get_running_loop().call_later(VANISHED_SECONDS, _drop, self._vanished, record.job_uid, record.uid)

    def _notify(self, record: PodRecord, after: float = 0.0) -> None:
        self._changed((record.namespace, record.job_name), after)

    def _consider(self, uid: str) -> None:
        """Read the node of a pod that does not advance, now or once it has not advanced for too long."""
        record = self._all.get(uid)
        if record is None or not self._is_ours(record):
            return
        now = self._clock()
        due = record.suspects_node_at()
        if record.suspects_node(now):
            if record.bound is not None:
                self._stuck.look(record)
            # A kubelet that starts others is busy, not lost: while many pods are made, all nodes would be read.
            due = self._started.get(record.pod.node, float("-inf")) + BUSY_SECONDS
            if record.marked or now >= due:
                self._nodes.look(record.pod.node)
                return
        if due is not None:
            asyncio.get_running_loop().call_later(due - now + 0.01, self._consider, uid)

    def _suspicion(self, node: str) -> bool | None:
        now = self._clock()
        here = self._on_node.get(node, {}).values()
        hints = [record for record in here if record.suspects_node(now) and self._is_ours(record)]
        return any(record.marked for record in hints) if hints else None

    def _stuck_pods(self, namespace: str) -> list[PodRecord]:
        now = self._clock()
        pods = (record for record in self._all.values() if record.bound is not None and record.namespace == namespace)
        return [record for record in pods if record.suspects_node(now) and self._is_ours(record)]

    def _node_changed(self, node: str) -> None:
        for record in list(self._on_node.get(node, {}).values()):
            self._notify(record)

    def _measured(self) -> None:
        for record in list(self._all.values()):
            if record.demands is not None:
                self._notify(record)

    # What the plan sees.

    def _pod(self, record: PodRecord) -> Pod:
        pod = record.pod
        if not pod.alive:
            events = self._lost.of(record.uid)
            return replace(pod, events=events) if events else pod
        if pod.phase == "Pending" and not pod.reason and record.bound is not None:
            reason, message = self._stuck.why(record.job_uid)
            pod = replace(pod, reason=reason, message=message) if reason else pod
        if record.demands is not None and self._nodes.awaited:
            pod = replace(pod, reason="", message="")  # another lookup follows at once, and would be rate-limited
        elif record.demands is not None and self._nodes.known:
            pod = self._explained(record, record.demands)
        if self._notices is not None and (notice := self._notices.leaves(pod.node, pod.placed or pod.created)):
            pod = replace(pod, leaving=notice)
        return replace(pod, phase="Unknown") if pod.node in self._nodes.lost else pod

    def _explained(self, record: PodRecord, demands: Demands) -> Pod:
        """Return the message with names and figures of what the scheduler only counts."""
        pod, asked = record.pod, record.asked
        if pod.reason == Reason.INSUFFICIENT_RESOURCE:
            return pod
        resource = _RESOURCES.get(pod.reason)
        if resource is None:
            reason, message = node_fit.reason(self._nodes.known, demands)
            return replace(pod, reason=reason, message=message) if reason else pod
        known = node_fit.admitting(self._nodes.known, demands)
        gang = [each for each in self._own(record.job_uid) if each.pod.alive and not each.pod.deleting]
        capacity = self._capacity(record.job_uid, known, resource.of)
        code, message = room(resource, nodes.number(resource.of(asked)), len(gang), capacity)
        return replace(pod, reason=code or pod.reason, message=message)

    def _capacity(self, job_uid: str, known: Iterable[Node], of: Amount) -> list[Room]:
        """Return the capacity of each of these nodes, and what the pods of other jobs leave of it."""
        return [
            Room(has, max(Decimal(0), has - self._used(node.metadata.name, of, besides=job_uid)))
            for node in known
            for has in [nodes.number(of(node.status.allocatable))]
        ]

    def _used(self, node: str, of: Amount, *, besides: str) -> Decimal:
        there = self._on_node.get(node, {}).values()
        return sum(
            (nodes.number(of(each.asked)) for each in there if each.pod.alive and each.job_uid != besides), Decimal(0)
        )


def _is_well(pod: Pod) -> bool:
    """Return whether it exists or starts as pods do, which need not be reported at once."""
    return pod.alive and not pod.deleting and pod.reason in {"", Reason.STARTING}


def _discard(table: defaultdict[Key, set[str]], key: Key, uid: str) -> None:
    table[key].discard(uid)
    if not table[key]:
        del table[key]


def _drop(table: defaultdict[str, dict[str, PodRecord]], key: str, uid: str) -> None:
    entries = table.get(key)
    if entries is not None:
        entries.pop(uid, None)
        if not entries:
            del table[key]
