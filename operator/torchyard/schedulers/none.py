"""Which gang scheduler a job gets: the one that it names, or the first that is switched on and served, or none.

Without one, pods are placed one by one, and the operator releases a gang that is only partly placed.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, Literal

from msgspec import Struct

from torchyard.api.reasons import Reason
from torchyard.api.spec_placement import Scheduling
from torchyard.schedulers.protocol import (
    Admission,
    Change,
    Gang,
    GivesBack,
    Kind,
    PodChanges,
    Request,
    Right,
    Scheduler,
    Source,
)


class NoScheduler(Struct, frozen=True):
    """The default scheduler of the cluster; the release of partly placed gangs is the operator's own."""

    name: ClassVar[str] = "torchyard"
    kinds: ClassVar[tuple[Kind, ...]] = ()
    sources: ClassVar[tuple[Source, ...]] = ()
    rights: ClassVar[tuple[Right, ...]] = ()
    places_together: ClassVar[bool] = False
    queues: ClassVar[Literal["required", "optional", "none"]] = "none"
    queue_kind: ClassVar[Kind | None] = None

    def ask(self, gang: Gang) -> tuple[Change, ...]:  # noqa: ARG002
        """Return nothing: pods are all that is needed."""
        return ()

    def admission(self, gang: Gang) -> Admission:
        """Return that pods may be created at any time."""
        timeout = gang.job.spec.scheduling.gang_timeout
        return Admission(message=f"pods are placed one by one; a partly placed gang is released after {timeout}")

    def pods(self, gang: Gang) -> PodChanges:  # noqa: ARG002
        """Return no change."""
        return PodChanges()

    def give_back(self, gang: Gang, why: GivesBack) -> tuple[Change, ...]:  # noqa: ARG002
        """Return nothing: deleted pods hold nothing."""
        return ()


class Nothing(NoScheduler, frozen=True):
    """`spec.scheduling.gang: none`: nothing enforces the gang, not even the operator."""

    name: ClassVar[str] = "none"
    places_together: ClassVar[bool] = True  # as far as the operator is concerned: it must not release the gang

    def admission(self, gang: Gang) -> Admission:  # noqa: ARG002
        """Return that pods may be created at any time."""
        return Admission(message="nothing enforces the gang: pods are placed one by one")


NOTHING, BY_OPERATOR = Nothing(), NoScheduler()


def choose(
    scheduling: Scheduling,
    enforced_by: str,
    switched_on: Sequence[Scheduler],
    served: Mapping[str, Kind],
    queues: Mapping[str, Collection[str]],
) -> Request:
    """Return the scheduler of a job.

    Args:
        scheduling: of the spec.
        enforced_by: the choice that is in force, from the status; empty: none was made since the job was at rest.
        switched_on: the schedulers that this installation may use, the preferred one first.
        served: by name of the scheduler, the kind of its object that the API server has.
        queues: by name of a scheduler that has a kind of queue, the queues that the job may name; a scheduler that is
            not in it has not listed them yet.
    """
    if scheduling.gang == "none":
        return Request(name=NOTHING.name, scheduler=NOTHING)
    known = {each.name: each for each in switched_on}
    if scheduling.gang != "auto":
        return _named(scheduling.gang, known, served)
    if enforced_by == BY_OPERATOR.name and scheduling.queue is None:
        return _without(scheduling, ())
    if enforced_by not in {"", BY_OPERATOR.name}:
        return _named(enforced_by, known, served)
    suitable = [each for each in switched_on if each.name in served and _suits(each, scheduling)]
    for each in suitable:
        kind = served[each.name]
        if scheduling.queue is None or each.queue_kind is None or scheduling.queue in queues.get(each.name, ()):
            return Request(name=each.name, scheduler=each, kind=kind)
        if each.name not in queues:
            return Request(name=each.name, scheduler=each, kind=kind, known=False)
    return _without(scheduling, suitable)


def _suits(scheduler: Scheduler, scheduling: Scheduling) -> bool:
    return scheduler.queues != ("none" if scheduling.queue is not None else "required")


def _named(name: str, known: Mapping[str, Scheduler], served: Mapping[str, Kind]) -> Request:
    scheduler = known.get(name)
    if scheduler is None:
        why = f"{name} is not among the schedulers of the operator (--schedulers, or schedulers.{name} of the chart)"
        return Request(name=name, scheduler=BY_OPERATOR, missing=why)
    if name not in served:
        wanted = " or ".join(f"{kind.kind} of {kind.api_version}" for kind in scheduler.kinds)
        return Request(name=name, scheduler=BY_OPERATOR, missing=f"{name}: the API server does not serve {wanted}")
    return Request(name=name, scheduler=scheduler, kind=served[name])


def _without(scheduling: Scheduling, without_the_queue: Sequence[Scheduler]) -> Request:
    """Return a request without a scheduler; a job that names a queue waits for it."""
    if scheduling.queue is None:
        return Request(name=BY_OPERATOR.name, scheduler=BY_OPERATOR)
    kinds = [f"{each.queue_kind.kind} of {each.name}" for each in without_the_queue if each.queue_kind is not None]
    field = f"spec.scheduling.queue {scheduling.queue}"
    if kinds:
        why, reason = f"{field}: the namespace has no {' and no '.join(kinds)} of this name", Reason.QUEUE_NOT_FOUND
    else:
        why, reason = f"{field}: no scheduler with queues is switched on and served", Reason.SCHEDULER_UNAVAILABLE
    return Request(name=BY_OPERATOR.name, scheduler=BY_OPERATOR, missing=why, reason=reason)
