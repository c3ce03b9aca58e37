"""The gang: which pods should exist, and what to create and delete.

A pod is named after its incarnation, which is in the status before a pod of that name is created. A replacement waits
until its predecessor is certainly gone: there is at most one live pod per index.
"""

import hashlib
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from torchyard.api.names import MAX_INCARNATION
from torchyard.api.reasons import Reason
from torchyard.api.resource import sparse, value_at
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.status import Images, KeptPod, TrainingJobStatus
from torchyard.api.validation.changes import FIXED, NOT_OF_A_POD, OF_A_ROUND
from torchyard.api.values import Time
from torchyard.reconcile.actions import CreatePod, DeletePod
from torchyard.reconcile.code import fixed_in_pod, is_followed, with_code
from torchyard.reconcile.node_memory import avoided_nodes
from torchyard.reconcile.observed import (
    Observed,
    Pod,
    View,
    cannot_start,
    is_ahead,
    is_flexible,
    is_leaving,
    is_outdated,
    is_spent,
    is_suspect,
    node_lost,
)
from torchyard.schedulers.protocol import PodChanges

CLEANUP_SECONDS = 30.0
SPARE_PAUSE_SECONDS = 60.0  # how long a pod is not created again that ended while it waited for its turn
TAKEN_SPREAD = 97
RELEASED = Reason.GANG_INCOMPLETE  # no pods until the pause has ended: only some of them could be scheduled
FUTILE = Reason.CLUSTER_TOO_SMALL  # likewise, and waiting does not help: the nodes cannot hold the gang
_OF_A_POD = tuple(fixed.field for fixed in FIXED if fixed.field not in NOT_OF_A_POD)


class GangPlan(Struct, frozen=True, kw_only=True):
    """Changes to the pods, and the status that must be written before them. `due`: when to plan again."""

    status: TrainingJobStatus
    deletes: tuple[DeletePod, ...] = ()
    creates: tuple[CreatePod, ...] = ()
    due: float | None = None


def keep_gang(seen: Observed, *, may_create: bool = True, changes: PodChanges | None = None) -> GangPlan:
    """Complete the gang: create missing pods; delete pods that ended early, block a name or are surplus.

    Args:
        seen: what is observed.
        may_create: whether the gang scheduler lets further pods exist.
        changes: what it needs in them.
    """
    view, status = seen.view, seen.status
    pause = pause_end(view, status)
    if pause is not None:
        grace = view.job.spec.grace_period
        emptied = empty_gang(view, grace_seconds=grace, why="only a part of its gang found room", kept=status.kept_pod)
        return GangPlan(status=status, deletes=emptied, due=pause)
    wanted, held = seen.desired_pods, seen.active
    kept = status.kept_pod.name if status.kept_pod is not None else ""
    members = status.rendezvous.members
    deletes = [
        _delete(view, pod, view.job.spec.grace_period, _deletion_reason(view, status, pod, wanted, held))
        for pod in _ordered(view.pods)
        if _deletable(view, pod)
        and held.get(pod.index if pod.index < wanted else -1) is not pod
        and pod.name != kept
        and _expendable(pod, status)
    ]
    present = seen.pods
    gone = [rank for rank, uid in enumerate(members) if uid and (uid not in present or not present[uid].alive)]
    is_open = status.rendezvous.open
    if is_open and (gone or not is_flexible(view.job.spec)):
        # The round decides whether a member is lost; nothing is replaced before the round is closed.
        return GangPlan(status=status, deletes=tuple(deletes))
    seated = {present[uid].index for uid in members if is_open and uid in present}
    missing = [index for index in range(wanted) if index not in held and index not in seated]
    if not is_flexible(view.job.spec):
        gone = [rank for rank in gone if rank in missing]
    used = [
        pod
        for pod in view.pods
        if pod.index in missing
        and pod.incarnation >= status.incarnation
        and (
            not pod.alive
            or pod.uid not in members
            or is_ahead(view, status, pod)
            or is_outdated(view, status, pod)
            or is_suspect(status, pod)
            or is_leaving(view, status, pod)
            or is_spent(view, status, pod)
        )
    ]
    if used and is_open:
        # A pod that ends while it waits for its turn would end again at once.
        again = Time.of(view.now + SPARE_PAUSE_SECONDS)
        status = replace(status, rendezvous=replace(status.rendezvous, next_round_time=again))
    if gone or used:
        gone = list(range(len(members))) if view.agentless else gone
        status = replace(
            status,
            incarnation=max([status.incarnation, *(pod.incarnation for pod in used)]) + 1,
            rendezvous=replace(
                status.rendezvous, members=["" if rank in gone else uid for rank, uid in enumerate(members)]
            ),
        )
    if missing and view.name_taken:
        status = replace(status, incarnation=_another(view, status))
    if not may_create:
        return GangPlan(status=status, deletes=tuple(deletes))
    wait_until: float | None = status.rendezvous.next_round_time if missing else None
    if missing and view.refusal is not None:
        wait_until = max(wait_until or 0.0, view.refusal.until)
    if wait_until is not None and view.now < wait_until:
        return GangPlan(status=status, deletes=tuple(deletes), due=wait_until)
    in_the_way = {pod.index for pod in view.pods if pod.alive}
    if view.agentless and any(pod.alive and held.get(pod.index) is not pod for pod in view.pods):
        # Members find each other by the names of their indices, to which pods of the former gang still respond.
        in_the_way.update(missing)
    return _with_pods(view, status, missing, in_the_way, tuple(deletes), changes)


def _with_pods(  # noqa: PLR0917 -- the gang as it is, and what is missing
    view: View,
    status: TrainingJobStatus,
    missing: list[int],
    in_the_way: set[int],
    deletes: tuple[DeletePod, ...],
    changes: PodChanges | None,
) -> GangPlan:
    """Create the missing pods whose indices are free."""
    images = _images(view, status)
    if missing and images != status.images:
        status = replace(status, images=images)
    memory = view.node_memory
    avoided = []
    if memory is not None and (memory.strikes or status.attempts):
        avoided = avoided_nodes(memory, status.attempts, view.now)
    creates = tuple(
        CreatePod(
            name=pod_name(view.job.metadata.name, status.incarnation, index),
            index=index,
            incarnation=status.incarnation,
            avoid=tuple(each.node for each in avoided),
            images=images,
            changes=changes,
        )
        for index in missing
        if index not in in_the_way
    )
    if creates:
        status = replace(status, avoided_nodes=avoided)
    return GangPlan(status=status, deletes=deletes, creates=creates)


def _another(view: View, status: TrainingJobStatus) -> int:
    """Return a later incarnation, whose names cannot have been predicted and taken."""
    further = status.incarnation + 1 + int(view.now * 1e6) % TAKEN_SPREAD
    return further if further <= MAX_INCARNATION else status.incarnation


def _images(view: View, status: TrainingJobStatus) -> Images | None:
    """Return the images of the gang: those it was created with, even if the installation would choose others now.

    Pods of a job whose status does not name them yet were created by another version of the operator.
    """
    now = view.images
    if now is None:
        return None
    # Pods that ended, or are about to, are of a former gang: those of a suspended job are still listed when it resumes.
    stay = (pod for pod in _ordered(view.pods) if pod.alive and not pod.deleting)
    held = next((pod.images for pod in stay if pod.images is not None), None)
    first = status.images or held or now
    # The image in the spec can change while the job is suspended.
    return replace(first, trainer=view.job.spec.image or first.trainer)


def pause_end(view: View, status: TrainingJobStatus) -> float | None:
    """Return when a released gang may be recreated; None: it was not released, or the pause has ended."""
    due = status.rendezvous.next_round_time
    return due if status.rendezvous.released and due is not None and view.now < due else None


def empty_gang(view: View, *, grace_seconds: float, why: str, kept: KeptPod | None = None) -> tuple[DeletePod, ...]:
    """Delete every remaining pod but the one that is `kept`."""
    name = kept.name if kept is not None else ""
    leave = (pod for pod in _ordered(view.pods) if _deletable(view, pod) and pod.name != name)
    return tuple(_delete(view, pod, grace_seconds, why) for pod in leave)


def leftovers(view: View, completed: float) -> tuple[tuple[DeletePod, ...], float | None]:
    """Return deletions of pods of a finished job that did not exit, and when to plan again. Ended pods keep their logs.

    Pods in which an injected container still runs are deleted: their node would never be free again.
    """
    live = [pod for pod in _ordered(view.pods) if (pod.alive or pod.lingers) and _deletable(view, pod)]
    if not live:
        return (), None
    due = completed + CLEANUP_SECONDS
    reachable = [pod for pod in live if pod.uid in view.agents and view.agents[pod.uid].connected]
    if view.agentless:  # no agent will make them exit
        late = [pod for pod in live if pod.alive or view.now >= due]
    else:
        late = live if view.now >= due else [pod for pod in live if pod not in reachable and pod.phase == "Pending"]
    deletes = (_delete(view, pod, 5.0, "the job is over") for pod in late)
    return tuple(replace(each, if_alive=True) for each in deletes), due if view.now < due else None


def kept_pod(view: View, status: TrainingJobStatus) -> KeptPod | None:
    """Return the ended pod that stays for people to look at; None: there is none, or its time is over.

    It is the one in which the newest failure began. Only a pod that has ended stays: any other one holds its GPUs.
    """
    limit = view.job.spec.debug.keep_failed_pod
    if limit is None or view.job.metadata.deletion_timestamp is not None:
        return None
    ended = {pod.name: pod for pod in view.pods if not pod.alive and not pod.lingers and not pod.deleting}
    for attempt in reversed(status.attempts):
        pod = ended.get(attempt.cause.pod) if attempt.cause is not None else None
        if pod is not None:
            until = (pod.finished or attempt.end_time or view.now) + limit
            kept = KeptPod(name=pod.name, round=attempt.round, until=Time.of(until))
            return kept if view.now < until else None
    return None


def _expendable(pod: Pod, status: TrainingJobStatus) -> bool:
    """Return whether a pod may be deleted: the round decides about members of an open round."""
    return not (status.rendezvous.open and pod.uid in status.rendezvous.members)


def _deletion_reason(view: View, status: TrainingJobStatus, pod: Pod, wanted: int, held: Mapping[int, Pod]) -> str:
    reasons = {
        "it knows a round that is not in the status": is_ahead(view, status, pod),
        "the gang is smaller now": pod.index >= wanted,
        "it was created from an older spec than the gang": is_outdated(view, status, pod),
        "its hardware is suspected, or slow": is_suspect(status, pod),
        f"its node leaves, {pod.leaving}": is_leaving(view, status, pod),
        "its round has ended, and without an agent it cannot take part in another one": is_spent(view, status, pod),
        "it ended too early": not pod.alive,
        "its container cannot be started": cannot_start(view, pod),
        "another pod has this index": pod.index in held,
    }
    return next((why for why, applies in reasons.items() if applies), "its node does not answer")


def _deletable(view: View, pod: Pod) -> bool:
    """Return whether deletion was not requested yet, or has to be forced since no kubelet will execute it."""
    return not pod.deleting or (pod.alive and node_lost(view, pod))


def _delete(view: View, pod: Pod, grace_seconds: float, why: str) -> DeletePod:
    forced = not pod.alive or node_lost(view, pod)
    return DeletePod(uid=pod.uid, name=pod.name, grace_seconds=0.0 if forced else float(grace_seconds), why=why)


def _ordered(pods: Iterable[Pod]) -> list[Pod]:
    return sorted(pods, key=lambda pod: (pod.index, pod.incarnation, pod.uid))


def pod_name(job_name: str, incarnation: int, index: int) -> str:
    """Name of the pod at `index` (0-based) in its `incarnation`; at most 63 characters for names up to MAX_JOB_NAME."""
    return f"{job_name}-{incarnation}-{index}"


def configuration(spec: TrainingJobSpec) -> str:
    """Return a digest of all fields that the pods of one gang must agree on.

    Fields at their default are left out, so that one that another version of the operator adds changes no digest.
    """
    document = sparse(spec)
    followed = is_followed(spec)
    fields = (field for field in _OF_A_POD if not (followed and field in OF_A_ROUND))
    fixed: list[object] = [(field, value) for field in fields if (value := value_at(document, field)) is not None]
    fixed += fixed_in_pod(spec) if followed else []
    digest = hashlib.sha256(msgspec.json.encode(fixed, order="sorted")).hexdigest()[:16]
    return with_code(digest, spec) if followed else digest
