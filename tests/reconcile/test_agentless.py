"""`launcher.kind: none`: a gang of pods without agents lives one round; the next round is a gang of new pods."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.reconcile.world import World

from torchyard.api.spec_reliability import Restart
from torchyard.api.spec_workload import Launcher
from torchyard.reconcile.actions import CommandAgent, DeletePod


class Plain(World):
    """A world in which no agent ever calls in."""

    def __init__(self, nodes=2, **spec):
        super().__init__(nodes, launcher=Launcher(kind="none"), command=["torchrun", "train.py"], **spec)

    def call_in(self, uid):
        pass

    def running(self):
        self.settle()
        self.start_pods()
        self.settle()
        self.now += 31
        self.settle()
        return self

    def end(self, index, code, reason=""):
        self.end_pod(self.at(index), code, reason)

    def names(self):
        return sorted(pod.name for pod in self.pods.values() if pod.alive and not pod.deleting)


def test_a_gang_whose_containers_run_is_a_round_and_trains_to_its_end():
    world = Plain()
    plans = world.settle()
    assert world.names() == ["job-0-0", "job-0-1"]
    world.start_pods()
    plans += world.settle()
    assert (world.status.state, world.status.round, world.status.rendezvous.open) == ("Starting", 1, True)
    world.now += 31
    world.settle()
    assert (world.status.state, world.status.nodes.ready) == ("Running", 2)
    world.end(1, 0)
    world.settle()
    assert world.status.state == "Running", "one member has still to end"
    world.end(0, 0)
    plans += world.settle()
    assert world.status.state == "Succeeded"
    assert len(world.pods) == 2, "ended pods stay for their logs"
    assert not [each for made in plans for each in made.actions if isinstance(each, CommandAgent)]


@pytest.mark.parametrize("code", [64, 66, 75, 76, 127])
def test_the_exit_code_of_a_pod_without_an_agent_is_the_programs_own(code):
    world = Plain(1, restart=Restart(no_progress_limit=1)).running()
    world.end(0, code)
    world.settle()
    assert (world.status.state, world.status.reason) == ("Failed", "NoProgress")
    assert f"last cause PodFailed, rank 0, pod job-0-0, node node-0, exit code {code}" in world.status.message


def test_a_member_that_fails_takes_the_whole_gang_into_new_pods():
    world = Plain().running()
    world.end(1, 3)
    plans = world.settle()
    deleted = [each for made in plans for each in made.actions if isinstance(each, DeletePod)]
    assert {each.name for each in deleted} == {"job-0-0", "job-0-1"}
    assert world.status.state == "Recovering"
    cause = world.status.attempts[0].cause
    assert (cause.pod, cause.exit_code, cause.rank) == ("job-0-1", 3, 1)
    assert world.names() == [], "nothing new while the former gang answers to the same names"
    world.finish_deletions()
    world.now += 400
    world.running()
    assert world.names() == ["job-1-0", "job-1-1"]
    assert (world.status.state, world.status.round) == ("Running", 2)


def test_a_job_that_ends_before_its_first_observation_has_succeeded():
    world = Plain()
    world.settle()
    world.start_pods()
    world.end(0, 0)
    world.end(1, 0)
    world.settle()
    assert (world.status.state, world.status.round, world.status.restarts.total) == ("Succeeded", 1, 0)


def test_a_pod_that_fails_before_its_first_observation_is_the_first_cause_of_the_round():
    world = Plain(restart=Restart(policy="Never", max_restarts=0))
    world.settle()
    world.start_pods()
    world.end(0, 1)
    world.settle()
    assert world.status.state == "Failed"
    assert world.status.attempts[0].cause.exit_code == 1
    assert world.names() == [], "what still trains is not left behind"


@pytest.mark.parametrize("how", ["vanish", "delete"])
def test_a_lost_pod_costs_nothing_and_is_replaced_with_its_gang(how):
    world = Plain().running()
    if how == "vanish":
        world.vanish(world.at(0))
    else:
        world.delete(world.at(0))
    world.settle()
    world.finish_deletions()
    world.now += 400
    world.running()
    assert world.status.state == "Running"
    assert world.names() == ["job-1-0", "job-1-1"]
    assert (world.status.restarts.total, world.status.restarts.counted) == (1, 0)


def test_suspend_ends_the_pods_within_their_grace_period_and_resume_makes_new_ones():
    world = Plain().running()
    world.edit(suspend=True)
    plans = world.settle()
    assert {each.grace_seconds for made in plans for each in made.actions if isinstance(each, DeletePod)} != {0.0}
    assert world.status.state == "Suspending"
    world.finish_deletions()
    world.settle()
    assert world.status.state == "Suspended"
    world.edit(suspend=False)
    world.running()
    assert (world.status.state, world.names()) == ("Running", ["job-1-0", "job-1-1"])


def test_a_restarted_operator_changes_nothing():
    world = Plain().running()
    before = world.status
    world.restart_operator()
    assert all(not made.actions for made in world.settle())
    assert world.status == before


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["start", "succeed", "fail", "vanish", "delete", "gone", "wait", "restart"]), st.integers(0, 2)
    ),
    max_size=30,
)


@settings(max_examples=150)
@given(EVENTS)
def test_under_any_pod_faults_there_is_one_gang_and_finished_jobs_stay_finished(history):
    world = Plain(3)
    world.settle()
    ended = None
    for event, index in history:
        uid = next((uid for uid, pod in world.pods.items() if pod.index == index and pod.alive), None)
        if event == "start":
            world.start_pods()
        elif event in {"succeed", "fail"} and uid is not None and world.pods[uid].phase == "Running":
            world.end_pod(uid, 0 if event == "succeed" else 7)
        elif event == "vanish" and uid is not None:
            world.vanish(uid)
        elif event == "delete" and uid is not None:
            world.pods[uid] = replace(world.pods[uid], deleting=True)
        elif event == "gone":
            world.finish_deletions()
        elif event == "restart":
            world.restart_operator()
        else:
            world.now += 400
        world.settle()
        live = [pod for pod in world.pods.values() if pod.alive]
        assert len({pod.index for pod in live}) == len(live), "two live pods of one index"
        members = set(world.status.rendezvous.members)
        if world.status.rendezvous.open:
            assert {pod.uid for pod in live} <= members, "a stranger beside the gang"
        assert ended is None or world.status.state == ended
        ended = world.status.state if world.status.state.terminal else None
