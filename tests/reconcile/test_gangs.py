"""Gangs of which only a part can be scheduled: they are released, and no two wait for each other for ever."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.reconcile.scenarios import condition, of, recover
from tests.support.reconcile.world import START, World

from torchyard.api.spec_placement import Scheduling
from torchyard.api.spec_reliability import Health
from torchyard.api.values import Duration
from torchyard.reconcile.actions import CreatePod, DeletePod, WriteStatus
from torchyard.reconcile.plan import plan

LIMIT, LATEST = 300.0, 375.0  # the default, and with all of chance
PAUSE = 60.0  # the longest first one


def part_placed(**spec):
    world = World(4, **spec)
    world.room = 3
    world.settle()
    world.start_pods()
    world.settle()
    return world


def wait(world, seconds, step=5.0):
    """Time goes by, and what is deleted goes."""
    end = world.now + seconds
    while world.now < end:
        world.now = min(end, world.now + step)
        world.settle()
        world.finish_deletions()
        world.start_pods()
    world.settle()


def wait_for(world, happened):
    end = world.now + 2 * LATEST
    while not happened():
        assert world.now < end
        wait(world, 1)


def test_a_partially_scheduled_gang_is_released_with_a_reason_and_recreated():
    world = part_placed()
    assert (world.status.state, world.status.reason) == ("Pending", "InsufficientGPU")
    assert LIMIT <= plan(world.view()).requeue_after <= LATEST
    world.now += LIMIT - 1
    world.settle()
    assert len(world.pods) == 4
    world.now = START + LATEST
    world.settle()
    world.finish_deletions()
    assert (world.status.state, world.status.reason, world.pods) == ("Pending", "GangIncomplete", {})
    assert "3 of 4 pods for 5m, InsufficientGPU: need 8, free 0" in world.status.message
    assert [event.reason for event in world.events if event.type == "Warning"] == ["InsufficientGPU", "GangIncomplete"]
    assert not of(CreatePod, plan(world.view()))
    world.room = None
    wait(world, PAUSE)
    assert {pod.name for pod in world.pods.values()} == {f"job-1-{index}" for index in range(4)}
    assert (world.status.state, world.status.round, world.status.restarts.total) == ("Starting", 1, 0)
    assert (world.status.rendezvous.releases, world.status.rendezvous.waiting_since) == (0, None)


def test_pods_that_a_quota_rejects_count_as_unscheduled():
    world = World(2)
    world.settle()
    world.start_pods()
    world.settle()
    world.vanish(world.at(1))
    world.refusing = True
    wait_for(world, lambda: world.status.reason == "QuotaExceeded")
    wait_for(world, lambda: world.status.reason == "GangIncomplete")
    assert "1 of 2 pods for 5m, QuotaExceeded" in world.status.message
    world.finish_deletions()
    assert world.pods == {}
    world.refusing = False
    wait(world, PAUSE)
    assert (world.status.rendezvous.open, world.status.round) == (True, 2)


def test_a_gang_without_any_scheduled_pod_holds_nothing_and_continues_to_wait():
    world = World(4)
    world.room = 0
    wait(world, 3600, step=60.0)
    assert (world.status.reason, len(world.created)) == ("InsufficientGPU", 4)


def test_a_pod_that_is_placed_late_gives_the_others_their_time_again():
    world = part_placed()
    world.room = 2
    wait(world, LIMIT - 10)
    world.edit(nodes=5)
    world.room = 4
    wait(world, LIMIT - 10)
    assert (world.status.reason, world.status.rendezvous.releases) == ("InsufficientGPU", 0)
    wait(world, LATEST)
    assert world.status.rendezvous.releases == 1


@pytest.mark.parametrize("nobodys", [True, False])
def test_what_holds_its_room_for_a_reason_keeps_it(nobodys):
    """No scheduler is asked to place all or none; or the survivors of a round have the only checkpoint."""
    if nobodys:
        world = part_placed(scheduling=Scheduling(gang="none"))
    else:
        world = World(4).to_running()
        world.files_stay = False
        world.advance_training(5, save=True)
        world.settle()
        lose_one(world)
    survivors = {uid for uid, pod in world.pods.items() if pod.node}
    wait(world, 3600, step=60.0)
    assert survivors == {uid for uid, pod in world.pods.items() if pod.node}


def test_the_survivors_of_a_round_are_released_as_well_and_continue_from_their_checkpoint():
    world = World(4).to_running()
    world.advance_training(5, save=True)
    world.settle()
    lose_one(world)
    assert (world.status.state, world.status.reason) == ("Recovering", "InsufficientGPU")
    wait_for(world, lambda: world.status.reason == "GangIncomplete")
    world.finish_deletions()
    assert (world.status.state, world.pods) == ("Recovering", {})
    assert condition(world, "Recovering").status == "True"
    world.room = None
    recover(world, 1)
    assert (world.status.state, world.status.round) == ("Running", 2)
    assert world.status.attempts[-1].start_step == 6
    assert world.status.restarts.counted == 0


def test_the_time_limit_of_waiting_counts_through_it():
    world = part_placed(health=Health(pending_timeout=Duration("20m")))
    world.now += LATEST
    world.settle()
    world.finish_deletions()
    wait(world, 1200 - LATEST - 10)
    assert world.status.state == "Pending"
    assert world.status.rendezvous.releases > 1
    wait(world, PAUSE * 4)
    assert (world.status.state, world.status.reason) == ("Failed", "PendingTimeout")


def test_pauses_grow_and_end_where_a_user_still_wants_to_wait():
    world = part_placed()
    pauses = []
    for _ in range(5):
        wait_for(world, lambda: world.status.reason == "GangIncomplete")
        begun = world.now
        wait_for(world, lambda: world.pods)
        pauses.append(world.now - begun)
    assert 30 <= pauses[0] <= 61
    assert 120 <= pauses[-1] <= 241


def test_a_new_operator_continues_the_pause_and_the_remaining_deletions():
    world = part_placed()
    world.now += LATEST
    decided = plan(world.view())
    deletions = of(DeletePod, decided)
    assert len(deletions) == 4
    for action in (*of(WriteStatus, decided), deletions[0]):
        world.carry_out(action)
    world.restart_operator()
    world.settle()
    world.finish_deletions()
    assert (world.status.reason, world.pods) == ("GangIncomplete", {})


def test_a_released_gang_can_be_suspended_and_resumed_at_once():
    world = part_placed()
    world.now += LATEST
    world.settle()
    world.finish_deletions()
    world.edit(suspend=True)
    world.settle()
    assert world.status.state == "Suspended"
    world.room = None
    world.edit(suspend=False)
    world.settle()
    assert len(world.pods) == 4


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(2, 5), min_size=2, max_size=4), spare=st.integers(0, 4), chance=st.randoms())
def test_gangs_that_share_a_cluster_all_have_their_turn(sizes, spare, chance):
    """However a scheduler deals room out pod by pod, if each gang has room alone, all are done in bounded time."""
    worlds = [World(size) for size in sizes]
    for number, world in enumerate(worlds):
        metadata = replace(world.job.metadata, uid=f"{chance.random()}-{number}")
        world.job = replace(world.job, metadata=metadata)
        world.room = 0
    capacity = max(sizes) + spare
    began = {}
    for _ in range(1000):
        for world in worlds:
            world.settle()
            world.finish_deletions()
        deal(worlds, capacity, chance)
        for world in worlds:
            world.start_pods()
            world.settle()
            if world.training and world.now - began.setdefault(id(world), world.now) >= 60:
                for uid in list(world.training):
                    world.end_workers(uid, 0)
                world.settle()
            world.now += 10
        if all(world.status.state.terminal for world in worlds):
            break
    assert {world.status.state for world in worlds} == {"Succeeded"}


def deal(worlds, capacity, chance):
    """Pods are placed one by one in any order, as the default scheduler does."""
    while sum(world.held() for world in worlds) < capacity:
        waiting = [world for world in worlds if any(not pod.node and pod.alive for pod in world.pods.values())]
        if not waiting:
            return
        lucky = chance.choice(waiting)
        lucky.room = lucky.held() + 1
        lucky.place()
        lucky.room = 0


def lose_one(world):
    """A pod vanishes, and there is no room for the one in its place."""
    world.room = 3
    world.vanish(world.at(2))
    world.settle()
    wait(world, 60)


def test_a_gang_that_can_never_fit_is_reported_once_and_rarely_retried():
    world = part_placed()

    def never_fits():
        for uid, pod in world.pods.items():
            if not pod.node:
                world.pods[uid] = replace(pod, reason="ClusterTooSmall", message="it needs 32 GPUs, there are 24 GPUs")
        world.settle()

    never_fits()
    for _ in range(8 * 60):  # eight hours
        world.now += 60.0
        world.settle()
        world.finish_deletions()
        world.start_pods()
        never_fits()
    sentence = (
        "the job can never be scheduled on the existing nodes (it needs 32 GPUs, there are 24 GPUs); request "
        "less or add nodes; the pods start once there are enough"
    )
    assert [event.message for event in world.events if event.reason == "ClusterTooSmall"] == [sentence]
    assert "GangIncomplete" not in {event.reason for event in world.events}
    assert world.status.reason == "ClusterTooSmall"
    assert len(world.created) <= 4 * (8 + 16), "each time twice as late, then twice an hour"
