"""Jobs that share a queue, in any order of events: quota is never exceeded, no gang is partial, nothing leaks."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace
from tests.support.kueue import SOURCES, conditions, evict, workload
from tests.support.kueue import Kueue as Queue
from tests.support.reconcile.world import World

from torchyard.api.spec_placement import Scheduling
from torchyard.reconcile.actions import CreatePod, PatchObject, WriteStatus
from torchyard.reconcile.plan import plan
from torchyard.schedulers.kueue import Kueue

JOBS, QUOTA = 3, 4
WHICH = st.integers(0, JOBS - 1)


class SlowWorld(World):
    """Its agents may take a while to obey."""

    slow = False

    def obey(self, uid):
        if not self.slow or self.commands.get(uid) is None or self.commands[uid].verb == "run":
            super().obey(uid)

    def wake(self):
        self.slow = False
        for uid in list(self.pods):
            self.obey(uid)


def job(number: int, nodes: int, priority: str) -> World:
    world = SlowWorld(nodes, scheduling=Scheduling(gang="kueue", queue="q", workload_priority_class=priority))
    assert world.job is not None
    world.job = replace(world.job, metadata=replace(world.job.metadata, name=f"job{number}", uid=f"{number}" * 8))
    world.scheduler, world.sources = Kueue(), SOURCES
    return world


class AnyHistory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.worlds = []
        self.queue = Queue(QUOTA, self.worlds)
        self.submitted = set()

    @initialize(
        jobs=st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["low", "high"])), min_size=JOBS, max_size=JOBS)
    )
    def described(self, jobs):
        self.worlds += [job(number, *each) for number, each in enumerate(jobs)]

    @rule(which=WHICH)
    def is_submitted(self, which):
        self.submitted.add(which)
        self.life_goes_on()

    @rule(which=WHICH, cut=st.none() | st.integers(0, 6))
    def reconciles(self, which, cut):
        """One plan, or a part of it: then the operator died, and another one starts with what was persisted."""
        world = self.worlds[which]
        if world.job is None or which not in self.submitted:
            return
        for action in plan(world.view()).actions[:cut]:
            self.check(world, action)
            world.carry_out(action)
        if cut is not None:
            world.restart_operator()

    @rule()
    def kueue_acts(self):
        self.queue.step()

    @rule(which=WHICH, reason=st.sampled_from(["Preempted", "ClusterQueueStopped", "NodeFailures"]))
    def is_evicted(self, which, reason):
        if self.queue.reserved(self.worlds[which]):
            evict(self.worlds[which], reason)

    @rule(which=WHICH)
    def agents_get_slow(self, which):
        self.worlds[which].slow = True

    @rule(which=WHICH)
    def agents_wake_up(self, which):
        self.worlds[which].wake()

    @rule(up=st.booleans())
    def kueue_goes_or_comes(self, up):
        self.queue.up = up

    @rule()
    def life_goes_on(self):
        """The usual course of things, so that histories get deep."""
        for number, world in enumerate(self.worlds):
            self.queue.step()
            self.reconciles(number, None)
            if not world.slow:
                world.finish_deletions()
            world.start_pods()
            world.now += 2
            self.reconciles(number, None)
            world.advance_training(2, save=True)
            self.reconciles(number, None)

    @rule(which=WHICH)
    def workers_are_done(self, which):
        for uid in list(self.worlds[which].training):
            self.worlds[which].end_workers(uid, 0)

    @rule(which=WHICH)
    def a_pod_vanishes(self, which):
        world = self.worlds[which]
        if world.pods:
            world.vanish(min(world.pods))

    @rule(which=WHICH, suspend=st.booleans())
    def is_suspended_or_resumed(self, which, suspend):
        world = self.worlds[which]
        if world.job is not None and not world.status.state.terminal:
            world.edit(suspend=suspend)

    @rule(which=WHICH, known=st.booleans())
    def objects_are_listed_or_not(self, which, known):
        self.worlds[which].objects_known = known

    @rule(which=WHICH)
    def watch_lags(self, which):
        self.worlds[which].delayed = not self.worlds[which].delayed

    def teardown(self):
        """All jobs end, and nothing is left."""
        self.queue.up = True
        self.submitted |= set(range(JOBS))
        for world in self.worlds:
            world.objects_known, world.delayed = True, False
            world.wake()
            if not world.status.state.terminal:
                world.edit(suspend=False)
        if not self.worlds:
            return
        for _ in range(60):
            for number in range(JOBS):
                self.life_goes_on()
                self.workers_are_done(number)
            if all(world.status.state.terminal for world in self.worlds):
                break
        assert [str(world.status.state) for world in self.worlds] == ["Succeeded"] * JOBS
        for _ in range(6):
            self.life_goes_on()
            for world in self.worlds:
                world.now += 60
        assert all(conditions(there).get("Finished") for there in map(workload, self.worlds) if there is not None)
        assert not any(pod.alive for world in self.worlds for pod in world.pods.values())

    @invariant()
    def pods_never_exceed_the_quota(self):
        assert sum(pod.alive for world in self.worlds for pod in world.pods.values()) <= QUOTA

    @invariant()
    def pods_that_live_have_quota(self):
        for world in self.worlds:
            if any(pod.alive for pod in world.pods.values()):
                assert self.queue.reserved(world)

    def check(self, world, action):
        if isinstance(action, PatchObject):
            assert not any(pod.alive for pod in world.pods.values())
            assert world.status.state.at_rest
        if isinstance(action, CreatePod):
            assert world.status.gang.enforced_by == "kueue"
        if isinstance(action, WriteStatus):
            assert action.status.restarts.counted == 0 or action.status.attempts


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
