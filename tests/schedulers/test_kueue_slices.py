"""An elastic gang in Kueue's queue: it begins with the fewest pods, grows by slices, and gives back what it left."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.kueue import SOURCES, conditions
from tests.support.reconcile.world import World

from torchyard.api.spec_placement import Elastic, Scheduling
from torchyard.api.spec_workload import Trainer
from torchyard.api.values import Duration, Time
from torchyard.schedulers.kueue import Kueue
from torchyard.schedulers.kueue_slices import ELASTIC, REPLACES, count
from torchyard.schedulers.protocol import GangObject

BOUNDS = Elastic(min_nodes=2, max_nodes=8, wait=Duration("10s"), cooldown=Duration("0s"))


class Slices:
    """Kueue in memory with one queue for one job: a slice takes the place of the Workload that it names."""

    def __init__(self, world: World, quota: int) -> None:
        self.world, self.quota = world, quota

    def reserved(self) -> int:
        """Pods that have quota."""
        return sum(count(each) for each in self.world.objects.values() if holds(each))

    def step(self) -> None:
        """One scheduling cycle."""
        objects = self.world.objects
        for name, each in list(objects.items()):
            metadata = each.document["metadata"]
            created = {"creationTimestamp": str(Time.of(self.world.now))}
            objects[name] = replace(each, document=each.document | {"metadata": created | metadata})
        for each in list(objects.values()):
            if conditions(each).get("Finished") or holds(each):
                continue
            assert each.at("metadata", "annotations", ELASTIC) == "true"
            key = str(each.at("metadata", "annotations", REPLACES) or "").rpartition("/")[2]
            replaced = objects.get(key)
            own = count(replaced) if replaced is not None and holds(replaced) else 0
            if count(each) > self.quota - self.reserved() + own:
                self._set(each, "QuotaReserved", "False", "Pending", "insufficient unused quota for nvidia.com/gpu")
                continue
            if own:
                self._set(replaced, "Finished", "True", "WorkloadSliceReplaced", "Replaced by another slice")
            self._set(each, "QuotaReserved", "True", "QuotaReserved", "Quota reserved")
            self._set(self.world.objects[each.name], "Admitted", "True", "Admitted", "The workload is admitted")

    def evict(self) -> None:
        """Preempt the job."""
        for each in list(self.world.objects.values()):
            if holds(each):
                self._set(each, "Evicted", "True", "Preempted", "Preempted to accommodate a workload")

    def _set(self, there: GangObject, kind: str, status: str, reason: str, message: str) -> None:
        listed = {each["type"]: each for each in there.at("status", "conditions") or ()}
        listed[kind] = {"type": kind, "status": status, "reason": reason, "message": message}
        after = (there.at("status") or {}) | {"conditions": list(listed.values())}
        if kind == "QuotaReserved" and status == "True":
            listed.pop("Evicted", None)
            after = {"conditions": list(listed.values()), "admission": {"clusterQueue": "cluster"}}
        document = there.document | {"status": after}
        self.world.objects[there.name] = replace(there, version=f"{there.version}+", document=document)


def holds(there: GangObject) -> bool:
    """Whether a Workload has quota."""
    known = conditions(there)
    return bool(known.get("QuotaReserved")) and not known.get("Finished")


def elastic(nodes: int, quota: int, **spec) -> tuple[World, Slices]:
    scheduling = Scheduling(gang="kueue", queue="research")
    world = World(nodes, trainer=Trainer(name="cvrp"), elastic=BOUNDS, scheduling=scheduling, **spec)
    world.scheduler, world.sources = Kueue(), SOURCES
    return world, Slices(world, quota)


def live(world: World, queue: Slices, seconds: float) -> None:
    """Run a healthy cluster for a while; no pod ever exists without quota."""
    end = world.now + seconds
    while world.now < end:
        queue.step()
        for _ in range(10):
            decided = world.step()
            alive = sum(pod.alive for pod in world.pods.values())
            assert alive <= queue.reserved(), f"{alive} pods live with quota for {queue.reserved()}"
            if not decided.actions:
                break
        world.finish_deletions()
        world.start_pods()
        world.now += 5
        world.advance_training(10, save=True, total=10_000)


def members(world: World) -> int:
    return len(world.status.rendezvous.members)


def test_a_gang_gets_its_quota_in_two_steps_and_starts_with_all_nodes():
    world, queue = elastic(4, quota=8)
    live(world, queue, 60)
    assert (members(world), world.status.round) == (4, 1)
    (there,) = world.objects.values()
    assert count(there) == 4
    assert world.status.gang.message == "queue research: quota is reserved in cluster queue cluster"


def test_a_gang_trains_with_the_quota_there_is_and_grows_when_there_is_more():
    world, queue = elastic(6, quota=3)
    live(world, queue, 120)
    assert members(world) == 3
    assert "for 3 of 6 pods: insufficient unused quota" in world.status.gang.message
    queue.quota = 8
    live(world, queue, 600)
    assert members(world) == 6
    assert len(world.objects) == 1


def test_a_smaller_gang_returns_quota_only_when_its_pods_are_gone():
    world, queue = elastic(6, quota=8, spares=1)
    live(world, queue, 120)
    assert (members(world), queue.reserved()) == (6, 7)
    world.edit(nodes=2)
    live(world, queue, 60)
    assert (members(world), queue.reserved()) == (2, 3)


def test_a_preempted_gang_asks_again_for_the_fewest_nodes():
    world, queue = elastic(4, quota=4)
    live(world, queue, 60)
    queue.evict()
    queue.quota = 2
    live(world, queue, 120)
    assert (members(world), queue.reserved(), world.status.state) == (2, 2, "Running")


@settings(max_examples=8, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["quota", "nodes", "evict", "suspend", "operator"]), st.integers(2, 8)), max_size=8
    )
)
def test_whatever_happens_the_gang_ends_with_the_largest_size_that_has_quota(happenings):
    world, queue = elastic(4, quota=8)
    for what, number in happenings:
        live(world, queue, 30)
        if what == "quota":
            queue.quota = max(number, queue.reserved())  # Kueue takes back by evictions only
        elif what == "nodes":
            world.edit(nodes=number)
        elif what == "evict":
            queue.evict()
        elif what == "suspend":
            world.edit(suspend=True)
            live(world, queue, 30)
            assert not world.objects
            world.edit(suspend=False)
        else:
            world.restart_operator()
    live(world, queue, 400)
    assert members(world) == min(world.job.spec.nodes, queue.quota)
    assert queue.reserved() == members(world)
