"""Kueue: a `Workload` that the job owns, with one pod set; no pod groups, no plug-in of Kueue.

Kueue admits the Workload when its queue has quota. To preempt, it sets the condition `Evicted` and waits: the quota
stays ours until the pods are gone and `QuotaReserved` is taken back in the status of the Workload.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

from msgspec import Struct

from torchyard.api.reasons import Reason
from torchyard.api.values import Time
from torchyard.schedulers import kueue_boost, kueue_slices, kueue_topology
from torchyard.schedulers.protocol import (
    Admission,
    Change,
    DeleteObject,
    Gang,
    GangObject,
    GivesBack,
    Kind,
    Manifest,
    ObjectCondition,
    PatchObject,
    PodChanges,
    Right,
    Source,
    ensure,
)

GROUP = "kueue.x-k8s.io"
VISIBILITY = f"visibility.{GROUP}"
WORKLOAD = Kind(GROUP, "v1beta2", "Workload", "workloads")
LOCAL_QUEUE = Kind(GROUP, "v1beta2", "LocalQueue", "localqueues")
FLAVOR = Kind(GROUP, "v1beta2", "ResourceFlavor", "resourceflavors", namespaced=False)
WORKLOAD_PRIORITY = Kind(GROUP, "v1beta2", "WorkloadPriorityClass", "workloadpriorityclasses", namespaced=False)
POD_PRIORITY = Kind("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", namespaced=False)
JOB_UID = f"{GROUP}/job-uid"
POD_SET = "gang"
REPLACED = "it is finished, and the job is not"
# Kueue itself queues a workload again after these evictions; after others, once their cause has gone.
REQUEUED_AFTER = frozenset({"Preempted", "NodeFailures"})

# Reasons of `QuotaReserved`, where Kueue's gate UnadmittedWorkloadsObservability is on; the sentence is more precise.
REASONS = {
    "NoMatchingFlavor": Reason.NO_MATCHING_FLAVOR,
    "WaitingForQuota": Reason.WAITING_FOR_QUOTA,
    "WaitingForPreemptedWorkloads": Reason.WAITING_FOR_QUOTA,
    "ExceedsMaxQuota": Reason.EXCEEDS_MAX_QUOTA,
    "TopologyPlacementFailed": Reason.TOPOLOGY_NOT_MET,
    "Misconfigured": Reason.QUEUE_MISCONFIGURED,
    "Suspended": Reason.QUEUE_STOPPED,
}
# Reasons of the condition `Active` of a ClusterQueue; all others are mistakes in its configuration.
INACTIVE = {"FlavorNotFound": Reason.FLAVOR_NOT_FOUND, "Stopped": Reason.QUEUE_STOPPED}
# The first that matches counts.
SENTENCES: tuple[tuple[re.Pattern[str], Reason], ...] = (
    (re.compile(r"Queue \S+ (doesn't exist|not found|is terminating or missing)"), Reason.QUEUE_NOT_FOUND),
    (re.compile(r"Queue \S+ is (stopped|inactive)"), Reason.QUEUE_STOPPED),
    (re.compile(r"insufficient unused quota|no longer fits|reempt"), Reason.WAITING_FOR_QUOTA),
    (re.compile(r"allow(s)? to fit|TopologyAwareScheduling|no topology domains"), Reason.TOPOLOGY_NOT_MET),
    (re.compile(r"maximum capacity"), Reason.EXCEEDS_MAX_QUOTA),
    (re.compile(r"flavor \S+ not found"), Reason.FLAVOR_NOT_FOUND),
    (re.compile(r"resource \S+ unavailable in ClusterQueue|namespace doesn't match"), Reason.QUEUE_MISCONFIGURED),
    (re.compile(r"untolerated taint|doesn't match node affinity"), Reason.NO_MATCHING_FLAVOR),
)


class Kueue(Struct, frozen=True):
    """The queue decides when the pods may exist; the scheduler of the cluster places them, one by one.

    `priority_boost`: the operator sets the priority boost of each Workload by the age of its checkpoint.
    """

    priority_boost: bool = False
    name: ClassVar[str] = "kueue"
    kinds: ClassVar[tuple[Kind, ...]] = (WORKLOAD,)
    sources: ClassVar[tuple[Source, ...]] = (
        Source(FLAVOR, ("metadata.name", "spec.nodeLabels", "spec.tolerations", "spec.topologyName")),
        Source(kueue_topology.TOPOLOGY, ("metadata.name", "spec.levels"), optional=True),
        Source(WORKLOAD_PRIORITY, ("metadata.name", "value")),
        Source(POD_PRIORITY, ("metadata.name", "value")),
        Source(LOCAL_QUEUE, ("metadata.name", "spec.clusterQueue")),
    )
    rights: ClassVar[tuple[Right, ...]] = (
        Right(GROUP, "workloads", ("list", "watch", "get", "create", "delete")),
        *kueue_slices.RIGHTS,
        Right(GROUP, "workloads/status", ("patch",)),
        Right(GROUP, LOCAL_QUEUE.plural, ("list", "watch")),
        # The place in the queue, and the quota that is free.
        Right(VISIBILITY, "localqueues/pendingworkloads", ("get",)),
        Right(GROUP, "clusterqueues", ("get",), everywhere=True),
        *(
            Right(each.group, each.plural, ("list", "watch"), everywhere=True)
            for each in (FLAVOR, kueue_topology.TOPOLOGY, WORKLOAD_PRIORITY, POD_PRIORITY)
        ),
    )
    places_together: ClassVar[bool] = False
    queues: ClassVar[Literal["required", "optional", "none"]] = "required"
    queue_kind: ClassVar[Kind | None] = LOCAL_QUEUE

    def ask(self, gang: Gang) -> tuple[Change, ...]:
        """Create the Workload; one that is finished, although the job is not, is replaced."""
        there = kueue_slices.current(gang)
        if there is not None and there.condition("Finished").holds:
            return () if gang.pods_live else _delete(there, REPLACED)
        if isinstance(_priority(gang), str):
            return ()
        labels = {JOB_UID: gang.job.metadata.uid}
        annotations = kueue_boost.of_new_workload() if self.priority_boost else {}
        if gang.job.spec.elastic is None:
            changes = ensure(gang, _spec(gang), labels, annotations)
        else:
            changes = kueue_slices.ask(gang, _spec(gang), labels, annotations)
        if changes or there is None or not self.priority_boost:
            return changes
        return kueue_boost.changes(gang, there)

    def admission(self, gang: Gang) -> Admission:
        """Return that pods may exist while the Workload is admitted and not evicted."""
        there = kueue_slices.current(gang)
        missing_class = _priority(gang) if there is None else None
        if isinstance(missing_class, str):
            return _waits(Reason.MISSING_PRIORITY_CLASS, missing_class, f"{missing_class} does not exist")
        if there is None or there.deleting:
            return _waits(Reason.WAITING_IN_QUEUE, "its Workload is being created")
        return _taken_back(gang, there) or _granted(gang, there)

    def pods(self, gang: Gang) -> PodChanges:
        """Return node labels and tolerations of the assigned flavors, and what admission checks ask for."""
        there = kueue_slices.current(gang)
        if there is None:
            return PodChanges()
        flavors = [_flavors(gang).get(name, {}) for name in _flavor_names(there)]
        updates = [*_pod_set_updates(there)]
        selector: dict[str, str] = {}
        for labels in (
            *(flavor.get("nodeLabels") for flavor in flavors),
            *(each.get("nodeSelector") for each in updates),
        ):
            selector |= labels or {}
        tolerations = [each for source in (*flavors, *updates) for each in source.get("tolerations") or ()]
        topology = kueue_topology.pods(there, POD_SET)
        return PodChanges(
            labels={key: value for each in updates for key, value in (each.get("labels") or {}).items()}
            | topology.labels,
            annotations={key: value for each in updates for key, value in (each.get("annotations") or {}).items()}
            | topology.annotations,
            node_selector=selector,
            tolerations=tuple(tolerations),
            spec=topology.spec,
        )

    def give_back(self, gang: Gang, why: GivesBack) -> tuple[Change, ...]:
        """Take back `QuotaReserved` after an eviction, finish the Workload at the end, delete it at a suspension."""
        there = kueue_slices.current(gang)
        if there is None or there.deleting:
            return ()
        if why == "suspended":
            return (*kueue_slices.forget(gang, "the job is suspended"), *_delete(there, "the job is suspended"))
        if there.condition("Finished").holds:
            return _delete(there, REPLACED) if why == "preempted" else ()
        if why == "ended":
            ended = gang.job.status
            end = ("Finished", "True", "Failed" if ended.state == "Failed" else "Succeeded", ended.message)
            finish = _patch(gang, there, [end], "the job is over")
            return (*kueue_slices.forget(gang, "the job is over"), finish)
        if not there.condition("QuotaReserved").holds:
            return ()
        evicted = there.condition("Evicted")
        requeued = "True" if evicted.reason in REQUEUED_AFTER else "False"
        changed = [
            ("QuotaReserved", "False", "Pending", evicted.message),
            ("Admitted", "False", "NoReservation", "The workload has no reservation"),
            ("Requeued", requeued, evicted.reason or "Pending", evicted.message),
        ]
        return (_patch(gang, there, changed, "its pods are gone", admission=None),)


def _spec(gang: Gang) -> Manifest:
    scheduling = gang.job.spec.scheduling
    pod_set = {"name": POD_SET, "count": gang.job.spec.nodes + gang.job.spec.spares, "template": gang.request.template}
    if topology := kueue_topology.requested(gang, _flavors(gang).values()):
        pod_set["topologyRequest"] = topology
    spec: Manifest = {"queueName": scheduling.queue, "podSets": [pod_set]}
    priority = _priority(gang)
    if isinstance(priority, int):
        spec["priority"] = priority
        named = scheduling.workload_priority_class
        of, kind = (GROUP, WORKLOAD_PRIORITY.kind) if named else (POD_PRIORITY.group, POD_PRIORITY.kind)
        spec["priorityClassRef"] = {"group": of, "kind": kind, "name": named or scheduling.priority_class}
    return spec


def _priority(gang: Gang) -> int | str | None:
    """Return the value of the job's priority class; a text: the class does not exist; None: none is named."""
    scheduling = gang.job.spec.scheduling
    kind = WORKLOAD_PRIORITY if scheduling.workload_priority_class is not None else POD_PRIORITY
    name = scheduling.workload_priority_class or scheduling.priority_class
    if name is None:
        return None
    found = next((each for each in gang.request.sources.get(kind.plural, ()) if each.name == name), None)
    return int(found.at("value") or 0) if found is not None else f"{kind.kind} {name}"


def _delete(there: GangObject, why: str) -> tuple[Change, ...]:
    return (DeleteObject(kind=there.kind, name=there.name, uid=there.uid, why=why),)


def _waits(reason: Reason, evidence: str, message: str = "") -> Admission:
    return Admission(pods="keep", admitted=False, reason=reason, evidence=evidence, message=message)


def _taken_back(gang: Gang, there: GangObject) -> Admission | None:
    """Return the verdict on a Workload that has no quota, or has to give it back; None: it may have quota."""
    evicted, reserved = there.condition("Evicted"), there.condition("QuotaReserved")
    if there.condition("Finished").holds:
        words = "the Workload is finished"
    elif evicted.holds:
        words = f"{evicted.reason}: {evicted.message}"
    elif reserved.status == "False":
        words = reserved.message
    else:
        return None
    if gang.pods_live or reserved.holds:
        return Admission(pods="stop", admitted=False, reason=Reason.PREEMPTED, evidence=f"Kueue: {words}")
    return _without_quota(gang, there, evicted)


def _granted(gang: Gang, there: GangObject) -> Admission:
    """Return the verdict on a Workload from which nothing is taken back."""
    reserved, admitted = there.condition("QuotaReserved"), there.condition("Admitted")
    queue, cluster_queue = there.at("spec", "queueName"), there.at("status", "admission", "clusterQueue")
    if not reserved.holds:
        return _waits(Reason.WAITING_IN_QUEUE, f"queue {queue}", f"queue {queue}: Kueue has not evaluated it yet")
    if not admitted.holds:
        return _waits(Reason.WAITING_FOR_ADMISSION_CHECKS, _unready_checks(there) or admitted.message)
    unknown = [name for name in _flavor_names(there) if name not in _flavors(gang)]
    if unknown:
        names = ", ".join(unknown)
        return _waits(Reason.FLAVOR_NOT_FOUND, names, f"ResourceFlavor {names} does not exist")
    message = f"queue {queue}: quota is reserved in cluster queue {cluster_queue}"
    if gang.job.spec.elastic is None:
        return Admission(admitted=True, message=message)
    return Admission(
        admitted=True, message=message + kueue_slices.shortage(gang, there), size=kueue_slices.count(there)
    )


def _unready_checks(there: GangObject) -> str:
    """Return the admission checks that are not ready: name, state and message of each."""
    checks = [each for each in there.at("status", "admissionChecks") or () if each.get("state") != "Ready"]
    return "; ".join(
        ": ".join(filter(None, (f"{each.get('name')} is {each.get('state')}", each.get("message")))) for each in checks
    )


def _without_quota(gang: Gang, there: GangObject, condition: ObjectCondition) -> Admission:
    """Return why a Workload has no quota, as a reason of ours, with Kueue's words."""
    if there.at("spec", "active") is False:
        workload = f"Workload {there.name}"
        return _waits(Reason.WORKLOAD_DEACTIVATED, workload, f"spec.active of {workload} is false")
    reserved = there.condition("QuotaReserved")
    newest = reserved if reserved.message else condition
    known = REASONS.get(newest.reason)
    stated = next((reason for words, reason in SENTENCES if words.search(newest.message)), None)
    queue = gang.request.queue_condition
    if stated is Reason.QUEUE_STOPPED and queue.status == "False":  # a Workload does not say why its queue is inactive
        return _waits(INACTIVE.get(queue.reason, Reason.QUEUE_MISCONFIGURED), f"{newest.message}: {queue.message}")
    return _waits(stated or known or Reason.WAITING_IN_QUEUE, newest.message)


def _flavors(gang: Gang) -> Mapping[str, Manifest]:
    flavors = gang.request.sources.get(FLAVOR.plural, ())
    return {each.name: each.at("spec") or {} for each in flavors}


def _flavor_names(there: GangObject) -> list[str]:
    """Return the flavors of the pod set, without repetition."""
    assigned = there.at("status", "admission", "podSetAssignments") or ()
    names = (name for each in assigned if each.get("name") == POD_SET for name in (each.get("flavors") or {}).values())
    return list(dict.fromkeys(names))


def _pod_set_updates(there: GangObject) -> Iterable[Manifest]:
    for check in there.at("status", "admissionChecks") or ():
        yield from (each for each in check.get("podSetUpdates") or () if each.get("name") == POD_SET)


def _patch(
    gang: Gang, there: GangObject, changed: list[tuple[str, str, str, str]], why: str, **status: Any
) -> PatchObject:
    """Change conditions of the Workload, each type, status, reason and message; all others stay as they are.

    A merge patch replaces the whole list: the resourceVersion is a precondition.
    """
    now = str(Time.of(gang.now))
    conditions = {str(each.get("type")): each for each in there.at("status", "conditions") or ()}
    for kind, value, reason, message in changed:
        before = conditions.get(kind, {})
        moved = before.get("lastTransitionTime") if before.get("status") == value else now
        conditions[kind] = {
            "type": kind,
            "status": value,
            "reason": reason,
            "message": message,
            "lastTransitionTime": moved or now,
            "observedGeneration": there.at("metadata", "generation") or 0,
        }
    return PatchObject(
        kind=there.kind,
        name=there.name,
        uid=there.uid,
        version=there.version,
        patch={"status": {"conditions": list(conditions.values()), **status}},
        why=why,
        subresource="status",
    )
