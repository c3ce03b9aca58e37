"""What the schedulers have in common that place the pods of a group, all or none, once the group exists."""

from abc import abstractmethod
from decimal import Decimal
from typing import ClassVar, Literal

from msgspec import Struct

from torchyard.api.launch import fewest_nodes
from torchyard.api.reasons import Reason
from torchyard.api.values import amount
from torchyard.schedulers.protocol import (
    Admission,
    Change,
    Gang,
    GangObject,
    GivesBack,
    Kind,
    Manifest,
    Right,
    Source,
    delete,
    ensure,
    is_asked,
)


class PodGroups(Struct, frozen=True):
    """A scheduler whose object is a group of pods. Its pods are created as soon as the group exists."""

    sources: ClassVar[tuple[Source, ...]] = ()
    places_together: ClassVar[bool] = True
    queues: ClassVar[Literal["required", "optional", "none"]] = "none"
    queue_kind: ClassVar[Kind | None] = None

    @abstractmethod
    def group(self, gang: Gang) -> Manifest:
        """Return the `spec` of the group."""

    @abstractmethod
    def words(self, group: GangObject) -> str:
        """Return what the scheduler says about a group that is not placed; empty: nothing."""

    def ask(self, gang: Gang) -> tuple[Change, ...]:
        """Create the group."""
        return ensure(gang, self.group(gang))

    def admission(self, gang: Gang) -> Admission:
        """Return that pods may be created once the group is there: the scheduler holds them until all can be placed."""
        there = gang.object
        if there is None or not is_asked(gang, self.group(gang)):
            return Admission(
                pods="keep", reason=Reason.WAITING_FOR_SCHEDULER, evidence="its pod group is being created"
            )
        if gang.pods_live and not gang.unplaced:
            return Admission(message=f"no pod of pod group {there.name} waits for a node")
        said = self.words(there) if gang.unplaced else ""
        return Admission(message=said or f"pod group {there.name} is placed once all its pods fit")

    def give_back(self, gang: Gang, why: GivesBack) -> tuple[Change, ...]:
        """Delete the group."""
        return delete(gang, f"the job is {'over' if why == 'ended' else 'suspended'}")


def queue_and_priority(gang: Gang) -> Manifest:
    """Return `queue` and `priorityClassName` of a group, as far as the job sets them."""
    scheduling = gang.job.spec.scheduling
    fields = {"queue": scheduling.queue, "priorityClassName": scheduling.priority_class}
    return {name: value for name, value in fields.items() if value}


def pod_group_rights(kind: Kind, *verbs: str) -> tuple[Right, ...]:
    """Return the rights on the groups of a scheduler."""
    return (Right(kind.group, kind.plural, ("list", "watch", "get", "create", "delete", *verbs)),)


def total_requests(gang: Gang) -> dict[str, str]:
    """Return the sum of what all pods request, as quantities in bytes, cores and units."""
    total: dict[str, Decimal] = {}
    containers = gang.request.template.get("spec", {}).get("containers", ())
    for container in containers:
        for name, quantity in container.get("resources", {}).get("requests", {}).items():
            total[name] = total.get(name, Decimal(0)) + amount(quantity) * fewest_nodes(gang.job.spec)
    return {name: f"{value.normalize():f}" for name, value in sorted(total.items())}
