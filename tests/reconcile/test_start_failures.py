"""Containers that a runtime could not start: a node's fault until it happens several times in a row."""

import pytest
from msgspec.structs import replace
from tests.support.reconcile.scenarios import of, recover
from tests.support.reconcile.world import World

from torchyard.api.spec_reliability import Restart
from torchyard.api.spec_workload import Launcher
from torchyard.reconcile.actions import DeletePod
from torchyard.reconcile.observed import STUCK_START_SECONDS

BUSY = "failed to start containerd task: context deadline exceeded"


def start_fails(world, index=0, reason="ContainerCannotStart", message=BUSY):
    uid = world.at(index)
    world.end_pod(uid, 128, reason, message)
    world.settle()
    return uid


@pytest.mark.parametrize("restart", [Restart(), Restart(max_restarts=0), Restart(no_progress_limit=1)])
def test_one_container_that_does_not_start_costs_nothing_and_is_replaced_on_another_node(restart):
    world = World(2, restart=restart)
    world.settle()
    failed = start_fails(world, 1)
    assert (world.status.state, world.status.reason) == ("Recovering", "ContainerCannotStart")
    assert BUSY in world.status.message
    recover(world, 3)
    assert world.status.state == "Running"
    assert failed not in world.status.rendezvous.members
    assert world.created[-1].avoid == ("node-1",)
    assert [(each.round, each.reason) for each in world.status.attempts] == [(1, "ContainerCannotStart"), (1, "")]
    first = world.status.attempts[0]
    assert (first.cause.node, first.cause.exception, first.counted) == ("node-1", BUSY, False)
    assert world.status.restarts.counted == 0


def test_nor_does_one_after_hundreds_of_good_steps():
    world = World(2).to_running()
    world.advance_training(417, save=True)
    world.settle()
    world.vanish(world.at(1))
    world.settle()
    start_fails(world, 1)
    assert world.status.state == "Recovering"
    recover(world, 3)
    assert world.status.state == "Running"
    assert [each.reason for each in world.status.attempts] == ["PodLost", "ContainerCannotStart", ""]


def test_it_waits_longer_each_time_and_gives_up_after_several_times_in_a_row():
    world = World(1)
    world.settle()
    for pause in (5, 10, 20, 40, 80):
        start_fails(world)
        made = len(world.created)
        world.now += pause - 1
        world.settle()
        assert len(world.created) == made, "not before the delay is over"
        world.now += 2
        world.settle()
        assert len(world.created) == made + 1
    start_fails(world)
    assert (world.status.state, world.status.reason) == ("Failed", "ContainerCannotStart")
    assert f"6 attempts in a row, the last one: pod job-5-0, node node-0, exit code 128, {BUSY}" in (
        world.status.message
    )


def test_a_round_between_them_breaks_the_row():
    world = World(1)
    world.settle()
    for _ in range(8):
        start_fails(world)
        recover(world, 1)
        world.vanish(world.at(0))
        world.settle()
    assert world.status.state == "Recovering"


@pytest.mark.parametrize("reason", ["PythonNotFound", "CommandNotFound"])
def test_what_is_missing_in_the_image_ends_the_job_once_three_pods_in_a_row_said_so(reason):
    world = World(1)
    world.settle()
    for _ in range(3):
        assert world.status.state != "Failed"
        start_fails(world, reason=reason, message='exec: "python3": executable file not found in $PATH')
        world.now += 130
        world.settle()
    assert (world.status.state, world.status.reason) == ("Failed", reason)


def test_pods_of_one_gang_that_fail_together_are_one_attempt():
    world = World(4)
    world.settle()
    for index in range(4):
        world.end_pod(world.at(index), 128, "ContainerCannotStart", BUSY)
    world.settle()
    assert len(world.status.attempts) == 1
    recover(world, 1)
    assert world.status.state == "Running"


def test_a_pod_whose_container_its_kubelet_cannot_create_is_replaced_after_a_while():
    """The kubelet retries on the same node for ever; the pod stays Pending."""
    world = World(1)
    world.settle()
    uid = world.at(0)
    world.pods[uid] = replace(world.pods[uid], reason="ContainerCannotStart", message="failed to reserve a name")
    world.now += STUCK_START_SECONDS - 1
    due = world.settle()[-1].requeue_after
    assert (world.status.state, world.status.reason, due) == ("Pending", "ContainerCannotStart", 1.0)
    world.now += 1
    plans = world.settle()
    assert [each.uid for each in of(DeletePod, plans[0])] == [uid]
    assert world.status.attempts[-1].cause.exception == "failed to reserve a name"
    recover(world, 1)
    assert world.status.state == "Running"


def test_without_an_agent_it_is_retried_as_well():
    world = World(1, launcher=Launcher(kind="none"), command=["bash", "-c", "x"])
    world.settle()
    start_fails(world)
    assert (world.status.state, world.status.reason) == ("Recovering", "ContainerCannotStart")
