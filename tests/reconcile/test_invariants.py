"""Whatever happens in whatever order, these hold: a machine throws pods, agents, clocks and edits at the plan."""

import re

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace
from tests.support.reconcile.world import World

from torchyard.api import values
from torchyard.api.launch import fewest_nodes
from torchyard.api.resource import TrainingJob
from torchyard.api.spec_placement import Elastic
from torchyard.api.spec_reliability import Backoff, Debug, Restart
from torchyard.api.status import (
    CONDITION_TYPES,
    MAX_STATUS_BYTES,
    Images,
    Rendezvous,
    TrainingJobStatus,
)
from torchyard.api.values import Duration
from torchyard.reconcile.actions import CommandAgent, CreatePod, DeletePod, EmitEvent, WriteStatus
from torchyard.reconcile.code import same_pod
from torchyard.reconcile.gang import configuration
from torchyard.reconcile.plan import MAX_MESSAGE, plan

CODES = (1, 64, 69, 74, 75, 76, 134, 137, 139, 143)
KEPT = st.sampled_from([Debug(), Debug(keep_failed_pod=Duration("2m")), Debug(keep_failed_pod=Duration("1h"))])
CODES_OF_USERS = tuple(letter * 64 for letter in "abc")
ANY = st.integers(min_value=0, max_value=7)
ELASTIC = Elastic(min_nodes=1, max_nodes=4, wait=Duration("5s"), patience=Duration("20s"), cooldown=Duration("30s"))
SIZES = st.sampled_from([{}, {}, {"elastic": ELASTIC}, {"spares": 1}, {"elastic": ELASTIC, "spares": 2}])


class AnyHistory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.before = self.world.job
        self.newest = 0  # round of a status that was lost
        self.strays = set()  # pods that trained then

    @initialize(
        nodes=st.integers(1, 4),
        limit=st.integers(1, 4),
        most=st.none() | st.integers(0, 3),
        deadline=st.none() | st.just(Duration("10m")),
        size=SIZES,
        debug=KEPT,
        travels=st.booleans(),
    )
    def submitted(self, nodes, limit, most, deadline, size, debug, travels):  # noqa: PLR0917 -- one draw each
        restart = Restart(
            no_progress_limit=limit, max_restarts=most, backoff=Backoff(initial=Duration("1s"), max=Duration("8s"))
        )
        self.world = World(nodes, restart=restart, active_deadline=deadline, debug=debug, **size)
        if travels:
            self.world.edit_code(CODES_OF_USERS[0], command=["torchrun", "train.py"])
        self.before = self.world.job

    # The controller.

    @rule()
    def reconciles(self):
        self.reconcile()

    @rule(cut=st.integers(0, 12))
    def dies_in_the_middle_of_a_plan(self, cut):
        """Some of the actions happened, then a new operator process starts with what was persisted."""
        if self.world.job is None:
            return
        decided = plan(self.world.view())
        for action in decided.actions[:cut]:
            self.check(action)
            self.world.carry_out(action)
            self.check_status()
        self.world.restart_operator()

    @rule()
    def restarts(self):
        self.world.restart_operator()

    @precondition(lambda self: self.world.job is not None)
    @precondition(lambda self: self.world.training)
    @rule()
    def status_is_lost(self):
        """Its file or object is gone, agents train on; a new operator process finds them."""
        self.newest = max(self.newest, self.world.status.round)
        self.strays |= set(self.world.training)
        self.world.job = self.before = replace(self.world.job, status=TrainingJobStatus())
        self.world.restart_operator()

    @precondition(lambda self: self.world.job is not None)
    @rule()
    def members_are_forgotten(self):
        """A user edited the status, or an older CRD pruned it, while agents train."""
        status = replace(self.world.status, rendezvous=Rendezvous())
        self.world.job = self.before = replace(self.world.job, status=status)

    @rule(delayed=st.booleans())
    def watch_lags_or_catches_up(self, delayed):
        self.world.delayed = delayed

    # The world.

    @rule(steps=st.integers(0, 3), save=st.booleans())
    def life_goes_on(self, steps, save):
        """The usual course of things, so that histories get deep: pods come and go, rounds open, steps are made."""
        self.reconcile()
        self.world.finish_deletions()
        self.world.start_pods()
        self.world.now += 2
        self.reconcile()
        self.world.advance_training(steps, save=save)
        self.reconcile()

    @rule(steps=st.integers(1, 9))
    def training_goes_on(self, steps):
        self.life_goes_on(steps, save=True)

    @rule()
    def pods_start(self):
        self.world.start_pods()

    @rule(seconds=st.sampled_from([1, 2, 5, 30, 120, 3600]))
    def time_passes(self, seconds):
        self.world.now += seconds

    @rule(steps=st.integers(1, 5), save=st.booleans())
    def training_advances(self, steps, save):
        self.world.advance_training(steps, save=save)

    @precondition(lambda self: self.world.training)
    @rule(which=ANY, code=st.sampled_from(CODES), secondary=st.booleans(), smaller=st.sampled_from([None, 0, 1, 4, 9]))
    def workers_fail(self, which, code, secondary, smaller):
        uid = self.pick(self.world.training, which)
        if uid is not None:
            self.world.end_workers(
                uid, code, exception="Error", message="x", secondary=secondary, rank=0, next_micro_batch=smaller
            )

    @precondition(lambda self: self.world.training)
    @rule(which=ANY)
    def workers_are_done(self, which):
        uid = self.pick(self.world.training, which)
        if uid is not None:
            self.world.end_workers(uid, 0)

    @precondition(lambda self: self.world.pods)
    @rule(which=ANY, code=st.sampled_from((0, *CODES)), reason=st.sampled_from(["", "OOMKilled", "Evicted"]))
    def pod_ends(self, which, code, reason):
        uid = self.pick([uid for uid, pod in self.world.pods.items() if pod.phase == "Running"], which)
        if uid is not None:
            self.world.end_pod(uid, code, reason if code else "")

    @precondition(lambda self: self.world.pods)
    @rule(which=ANY, ended=st.booleans(), reason=st.sampled_from(["ContainerCannotStart", "PythonNotFound"]))
    def container_cannot_be_started(self, which, ended, reason):
        """The runtime gives up at once, or the kubelet tries again and again."""
        pending = [uid for uid, pod in self.world.pods.items() if pod.phase == "Pending" and pod.node]
        uid = self.pick(pending, which)
        if uid is not None and ended:
            self.world.end_pod(uid, 128, reason)
        elif uid is not None:
            self.world.pods[uid] = replace(self.world.pods[uid], reason=reason)

    @precondition(lambda self: self.world.pods)
    @rule(which=ANY)
    def pod_is_deleted_by_hand(self, which):
        uid = self.pick(self.world.pods, which)
        if uid is not None:
            self.world.delete(uid)

    @precondition(lambda self: self.world.pods)
    @rule()
    def deleted_pods_go(self):
        self.world.finish_deletions()

    @precondition(lambda self: self.world.pods)
    @rule(which=ANY)
    def pod_vanishes(self, which):
        uid = self.pick(self.world.pods, which)
        if uid is not None:
            self.world.vanish(uid)

    @precondition(lambda self: self.world.agents)
    @rule(which=ANY)
    def agent_restarts(self, which):
        uid = self.pick(self.world.agents, which)
        if uid is not None:
            self.world.commands.pop(uid, None)
            self.world.call_in(uid)

    @precondition(lambda self: self.world.agents)
    @rule(which=ANY, connected=st.booleans())
    def agent_goes_silent_or_comes_back(self, which, connected):
        uid = self.pick(self.world.agents, which)
        if uid is not None:
            self.world.agents[uid] = replace(self.world.agents[uid], connected=connected)

    @precondition(lambda self: self.world.agents)
    @rule(which=ANY)
    def node_stops_answering(self, which):
        uid = self.pick([uid for uid, pod in self.world.pods.items() if pod.phase == "Running"], which)
        if uid is not None:
            self.world.pods[uid] = replace(self.world.pods[uid], phase="Unknown")

    @precondition(lambda self: self.world.pods)
    @rule(which=ANY, notice=st.sampled_from(["", "taint spot"]))
    def node_announces_its_end_or_takes_it_back(self, which, notice):
        uid = self.pick(self.world.pods, which)
        if uid is not None:
            self.world.pods[uid] = replace(self.world.pods[uid], leaving=notice)

    @rule(refusing=st.booleans())
    def cluster_refuses_pods_or_takes_them(self, refusing):
        self.world.refusing = refusing

    @rule(room=st.none() | st.integers(0, 4))
    def others_take_room_or_leave_it(self, room):
        self.world.room = room

    # The user.

    @precondition(lambda self: self.world.job is not None)
    @rule(suspend=st.booleans())
    def user_suspends_or_resumes(self, suspend):
        if self.world.job.spec.suspend != suspend:
            self.world.edit(suspend=suspend)

    @precondition(lambda self: self.world.job is not None)
    @rule(nodes=st.integers(1, 4))
    def user_scales(self, nodes):
        self.world.edit(nodes=nodes)

    @precondition(lambda self: self.world.job is not None)
    @rule(debug=KEPT)
    def user_keeps_failed_pods_or_no_longer(self, debug):
        self.world.edit(debug=debug)

    @precondition(lambda self: self.world.pods)
    @rule(which=ANY, events=st.lists(st.sampled_from(["Killing", "NodeNotReady"]), max_size=6))
    def events_of_an_ended_pod_become_known(self, which, events):
        uid = self.pick([uid for uid, pod in self.world.pods.items() if not pod.alive], which)
        if uid is not None:
            self.world.pods[uid] = replace(self.world.pods[uid], events=tuple(events))

    @precondition(lambda self: self.world.job is not None)
    @rule(lr=st.integers(1, 3))
    def user_edits_what_only_a_new_gang_can_follow(self, lr):
        """The API server cannot refuse it: parameters of a trainer are not typed there."""
        self.world.edit(args=[f"--lr={lr}"])

    @precondition(lambda self: self.world.job is not None and self.world.job.spec.code is not None)
    @rule(digest=st.sampled_from(CODES_OF_USERS), lr=st.integers(1, 2), which=st.none() | ANY, arrived=st.booleans())
    def user_edits_the_code(self, digest, lr, which, arrived):
        """It is pushed into all pods, into all but one, or into none; a user with kubectl does not even store it."""
        without = self.pick(self.world.agents, which) if which is not None else None
        self.world.push(digest, [uid for uid in self.world.agents if uid != without and which != 0])
        self.world.edit_code(digest, arrived=arrived, args=[f"--lr={lr}"])

    @precondition(lambda self: self.world.job is not None and self.world.job.spec.code is not None)
    @rule()
    def code_arrives(self):
        self.world.edit_code(self.world.job.spec.code.digest)

    @rule(version=st.integers(1, 3))
    def operator_is_upgraded(self, version):
        self.world.images = Images(trainer=f"trainer:{version}", agent=f"agent:{version}")
        self.world.restart_operator()

    @rule(version=st.integers(1, 3))
    def user_edits_a_config_map(self, version):
        self.world.content = f"content-{version}"

    # What holds.

    def teardown(self):
        """Once faults stop and pods behave, the job comes to an end in bounded time."""
        world = self.world
        if world.job is None:
            return
        world.delayed = world.refusing = False
        world.room = None
        if world.job.spec.code is not None:
            self.code_arrives()
        if world.job.spec.suspend:
            world.edit(suspend=False)
        for uid, pod in list(world.pods.items()):
            if pod.phase == "Unknown":
                world.vanish(uid)
            elif uid in world.agents:
                world.agents[uid] = replace(world.agents[uid], connected=True)
        for _ in range(60):
            if world.status.state.terminal:
                break
            self.reconcile()
            world.finish_deletions()
            world.start_pods()
            for uid in list(world.training):
                world.end_workers(uid, 0)
            world.now += 5
        assert world.status.state.terminal, world.status

    def reconcile(self):
        world = self.world
        if world.job is None:
            return
        for _ in range(12):
            decided = plan(world.view())
            assert decided == plan(world.view()), "plan is pure"
            if any(isinstance(action, CreatePod) for action in decided.actions):
                assert world.refusal is None or world.now >= world.refusal.until, "a refusal is waited out"
            if not decided.actions:
                assert decided.requeue_after is None or decided.requeue_after > 0
                self.nothing_of_another_round_trains()
                self.only_the_newest_failure_keeps_its_pod()
                return
            for action in decided.actions:
                self.check(action)
                world.carry_out(action)
                self.check_status()
                if world.job is None:
                    return
        raise AssertionError(f"plans of an unchanged world never come to rest: {decided}")

    def check(self, action):
        """What may never be asked for."""
        job, world = self.world.job, self.world
        if isinstance(action, CreatePod):
            assert not job.spec.suspend
            assert not job.status.state.terminal
            assert action.incarnation <= job.status.incarnation, "persisted before created"
            live = [pod for pod in world.pods.values() if pod.index == action.index and pod.alive]
            assert all(pod.name == action.name for pod in live), "at most one live pod per index"
        elif isinstance(action, DeletePod):
            assert action.uid in world.cache
            kept = job.status.kept_pod
            if kept is not None and world.cache[action.uid].name == kept.name:
                assert job.metadata.deletion_timestamp is not None, "a kept pod stays"
        elif isinstance(action, CommandAgent) and action.verb == "run":
            meet = job.status.rendezvous
            assert meet.open
            assert action.round == job.status.round, "a round is persisted before any agent gets it"
            assert meet.members[action.node_rank] == action.pod_uid
            assert (action.master_address, action.master_port) == (meet.master_address, meet.master_port)
        elif isinstance(action, EmitEvent):
            assert 0 < len(action.message) <= MAX_MESSAGE
            if action.reason == "Resizing":
                now, then = map(int, re.findall(r"from (\d+) to (\d+) node", action.message)[0])
                assert now == len(job.status.rendezvous.members), "the size that it has"
                assert now != then
                assert fewest_nodes(job.spec) <= then <= job.spec.nodes
        elif isinstance(action, WriteStatus) and action.status.round > job.status.round:
            assert action.status.round == job.status.round + 1
            assert not job.status.rendezvous.open, "a round opens after the one before was closed"
            assert all(uid in world.cache for uid in action.status.rendezvous.members), "members exist when it opens"
            assert fewest_nodes(job.spec) <= len(set(action.status.rendezvous.members)) <= job.spec.nodes
            assert len(set(action.status.rendezvous.members)) == len(action.status.rendezvous.members)
            members = [world.cache[uid] for uid in action.status.rendezvous.members]
            agents = [world.registry[uid] for uid in action.status.rendezvous.members]
            assert len({pod.configuration.partition(".")[0] for pod in members}) == 1, "one gang, one configuration"
            assert same_pod(members[0].configuration, configuration(job.spec))
            assert len({pod.images for pod in members}) == 1, "one gang, one pair of images"
            assert len({agent.content for agent in agents}) == 1, "one gang, one content"

    @invariant()
    def check_status(self):
        if self.world.job is None:
            return
        old, new = self.before, self.world.job
        self.before = new
        was, now = old.status, new.status
        if now == was:
            return
        assert now.state
        assert not was.state.terminal or self.timeless(now) == self.timeless(was), "terminal is terminal"
        assert len(msgspec.json.encode(now, enc_hook=values.encode)) <= MAX_STATUS_BYTES
        assert [each.type for each in now.conditions] == list(CONDITION_TYPES)
        assert now.observed_generation >= was.observed_generation
        assert now.incarnation >= was.incarnation
        for name in ("total", "counted"):
            assert getattr(now.restarts, name) >= getattr(was.restarts, name) >= 0
        assert now.restarts.no_progress >= 0
        assert len(now.attempts) <= 10
        assert len(now.metrics) <= 32
        if was.rendezvous.micro_batch is not None:
            assert 0 < now.rendezvous.micro_batch <= was.rendezvous.micro_batch, "what was learned is not forgotten"
        self.transition_times(old, new)
        written = msgspec.json.encode(now, enc_hook=values.encode)
        read_back = msgspec.json.decode(written, type=type(now), dec_hook=values.decode)
        assert read_back == now

    @staticmethod
    def timeless(status: TrainingJobStatus) -> TrainingJobStatus:
        """Which generation was seen says nothing of the job, and events of a lost pod are known later than its end."""
        conditions = [replace(each, observed_generation=0) for each in status.conditions]
        attempts = [
            replace(each, cause=replace(each.cause, events=[])) if each.cause is not None else each
            for each in status.attempts
        ]
        return replace(status, observed_generation=0, conditions=conditions, attempts=attempts)

    def transition_times(self, old: TrainingJob, new: TrainingJob):
        earlier = {each.type: each for each in old.status.conditions}
        for each in new.status.conditions:
            assert each.last_transition_time
            if each.type in earlier and earlier[each.type].status == each.status:
                assert earlier[each.type].last_transition_time == each.last_transition_time

    @invariant()
    def at_most_one_live_pod_per_index(self):
        live = [pod.index for pod in self.world.pods.values() if pod.alive]
        assert len(live) == len(set(live))

    @invariant()
    def members_of_a_round_run_one_program(self):
        world, status = self.world, self.world.job and self.world.status
        if status and status.rendezvous.open:
            ran = [world.ran[uid] for uid, number in world.training.items() if number == status.round]
            assert all(each == ran[0] for each in ran), ran

    def nothing_of_another_round_trains(self):
        """Agents obey at once here, so a world at rest trains the open round or nothing."""
        world, status = self.world, self.world.status
        if world.delayed:
            return
        allowed = {status.round} if status.rendezvous.open else set()
        for uid, number in world.training.items():
            assert number in allowed or (uid in self.strays and world.pods[uid].deleting)

    def only_the_newest_failure_keeps_its_pod(self):
        """The kept pod has ended, is in the way of none, and every other pod that has ended goes."""
        world, status = self.world, self.world.status
        if world.delayed or status.state.terminal:
            return
        kept = status.kept_pod
        ended = {pod.name for pod in world.pods.values() if not pod.alive and not pod.deleting}
        if kept is not None:
            limit = world.job.spec.debug.keep_failed_pod
            assert kept.name in ended
            assert limit is not None
            assert world.now < kept.until <= world.now + limit
        if status.state.at_rest:
            assert ended <= {kept.name if kept is not None else ""}

    @invariant()
    def never_two_rounds_train_after_the_newest_was_told(self):
        """Workers of an old round may still be stopping, but none of a round that was never opened."""
        assert all(number <= max(self.world.status.round, self.newest) for number in self.world.training.values())

    @staticmethod
    def pick(things, which):
        ordered = sorted(things)
        return ordered[which % len(ordered)] if ordered else None


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(max_examples=400, stateful_step_count=40, suppress_health_check=list(HealthCheck))
