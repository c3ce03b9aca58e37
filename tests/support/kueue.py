"""Kueue in memory, by its contract: one queue, by priority and then by age, and preemption that waits for victims."""

from msgspec.structs import replace
from tests.support.reconcile.world import World

from torchyard.schedulers.kueue import FLAVOR, WORKLOAD_PRIORITY
from torchyard.schedulers.protocol import GangObject

FLAVORS = (
    GangObject(
        kind=FLAVOR,
        name="spot",
        uid="f",
        document={"spec": {"nodeLabels": {"pool": "spot"}, "tolerations": [{"key": "spot", "operator": "Exists"}]}},
    ),
)
CLASSES = tuple(
    GangObject(kind=WORKLOAD_PRIORITY, name=name, uid=name, document={"value": value})
    for name, value in (("low", 10), ("high", 100))
)
SOURCES = {"resourceflavors": FLAVORS, "workloadpriorityclasses": CLASSES}


def conditions(there: GangObject) -> dict[str, bool]:
    listed = there.at("status", "conditions") or ()
    return {each["type"]: each["status"] == "True" for each in listed}


def workload(world: World) -> GangObject | None:
    return next(iter(world.objects.values()), None)


def with_status(world: World, changes: dict[str, tuple[bool, str, str]], **status: object) -> None:
    """Kueue writes conditions (type: status, reason, message) and other fields of the status; None removes one."""
    there = workload(world)
    assert there is not None
    listed = {each["type"]: each for each in there.at("status", "conditions") or ()}
    for kind, (value, reason, message) in changes.items():
        listed[kind] = {"type": kind, "status": str(value), "reason": reason, "message": message}
    before = there.at("status") or {}
    after = {key: value for key, value in (before | status).items() if value is not None}
    document = there.document | {"status": after | {"conditions": list(listed.values())}}
    world.objects[there.name] = replace(there, version=f"{there.version}+", document=document)


def admit(world: World) -> None:
    granted = (True, "QuotaReserved", "Quota reserved in ClusterQueue cluster")
    changes = {"QuotaReserved": granted, "Admitted": (True, "Admitted", "The workload is admitted")}
    if "Evicted" in conditions(workload(world)):
        changes["Evicted"] = (False, "QuotaReserved", "Previously: preempted")
    assignment = {"name": "gang", "flavors": {"nvidia.com/gpu": "spot"}}
    with_status(world, changes, admission={"clusterQueue": "cluster", "podSetAssignments": [assignment]})


def evict(world: World, reason: str = "Preempted", message: str = "Preempted to accommodate a workload") -> None:
    with_status(world, {"Evicted": (True, reason, message)})


class Kueue:
    """One cluster queue over several jobs. `quota`: pods."""

    def __init__(self, quota: int, worlds: list[World]) -> None:
        self.quota, self.worlds = quota, worlds
        self.up = True

    def reserved(self, world: World) -> int:
        """Pods whose quota the Workload of a job holds."""
        there = workload(world)
        if there is None or conditions(there).get("Finished") or not conditions(there).get("QuotaReserved"):
            return 0
        return int(there.at("spec", "podSets")[0]["count"])

    def step(self) -> None:
        """One scheduling cycle."""
        if not self.up:
            return
        waiting = [world for world in self.worlds if self._waits(world)]
        for world in sorted(waiting, key=lambda each: -self._priority(each)):
            count = int(workload(world).at("spec", "podSets")[0]["count"])
            free = self.quota - sum(map(self.reserved, self.worlds))
            if count <= free:
                admit(world)
                continue
            message = f"insufficient unused quota for nvidia.com/gpu in flavor spot, {count - free} more needed"
            if count > self.quota:
                message = f"insufficient quota for nvidia.com/gpu: request {count} > maximum capacity ({self.quota})"
            if (workload(world).condition("QuotaReserved").message) != message:
                with_status(world, {"QuotaReserved": (False, "Pending", message)}, admission=None)
            self._preempt(world, count - free)
            return  # strictly first in, first out

    def _preempt(self, world: World, needed: int) -> None:
        lower = [each for each in self.worlds if self.reserved(each) and self._priority(each) < self._priority(world)]
        evicted = [each for each in lower if conditions(workload(each)).get("Evicted")]
        needed -= sum(map(self.reserved, evicted))
        if needed > sum(self.reserved(each) for each in lower if each not in evicted):
            return
        for victim in lower:
            if needed > 0 and victim not in evicted:
                needed -= self.reserved(victim)
                evict(victim)

    def _waits(self, world: World) -> bool:
        there = workload(world)
        if there is None or there.deleting or there.at("spec", "active") is False:
            return False
        known = conditions(there)
        return not known.get("Finished") and not known.get("QuotaReserved")

    @staticmethod
    def _priority(world: World) -> int:
        return int(workload(world).at("spec", "priority") or 0)
