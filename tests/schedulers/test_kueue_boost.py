"""The priority boost of a Workload: by the training that a preemption would lose, rarely changed, never above 0."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.kueue import SOURCES, admit, evict, workload
from tests.support.reconcile.world import START, World

from torchyard.api.spec_placement import Scheduling
from torchyard.api.status import Attempt, CheckpointStatus, TrainingJobStatus
from torchyard.api.values import Time
from torchyard.reconcile.actions import CreateObject, PatchObject
from torchyard.reconcile.plan import plan
from torchyard.schedulers.backends import switched_on
from torchyard.schedulers.kueue_boost import BOOST, LOWEST, boost

MINUTE = 60.0


def queued():
    world = World(2, scheduling=Scheduling(gang="kueue", queue="research"))
    (world.scheduler,) = switched_on(["kueue=priorityBoost"])
    world.sources = SOURCES
    world.settle()
    return world


def boost_of(world):
    return int(workload(world).at("metadata", "annotations", BOOST))


def after(world, seconds):
    """Return when the boost was changed in this time, with a plan every ten seconds."""
    changed = []
    until = world.now + seconds
    while world.now < until:
        world.now += 10
        for action in plan(world.view()).actions:
            if isinstance(action, PatchObject):
                changed.append(world.now)
            world.carry_out(action)
    return changed


def test_it_rises_with_the_age_of_the_checkpoint_and_falls_with_the_next_one():
    world = queued()
    assert boost_of(world) == LOWEST
    admit(world)
    world.to_running()
    began = world.now
    changed = after(world, 70 * MINUTE)
    assert boost_of(world) == 0
    assert [round((each - began) / MINUTE) for each in changed] == [1, 5, 15, 60]
    world.advance_training(5, save=True)
    after(world, 20)
    assert boost_of(world) == LOWEST


def test_a_waiting_workload_has_the_lowest_boost_again():
    world = queued()
    admit(world)
    world.to_running()
    after(world, 70 * MINUTE)
    evict(world)
    for _ in range(30):
        world.step()
        world.finish_deletions()
    assert world.status.reason == "Preempted"
    after(world, 2 * MINUTE)
    assert boost_of(world) == LOWEST


def test_two_changes_are_a_minute_apart_also_across_operators():
    world = queued()
    admit(world)
    world.to_running()
    after(world, 70 * MINUTE)
    changed = []
    for _ in range(30):
        world.advance_training(1, save=True)
        changed += after(world, 10)
        world.restart_operator()
        changed += after(world, 10)
    assert changed
    assert all(later - earlier >= MINUTE for earlier, later in itertools.pairwise(changed))


@pytest.mark.parametrize("names", [["kueue"], ["kueue=priorityBoost"]])
def test_only_the_value_of_the_chart_sets_it(names):
    world = World(2, scheduling=Scheduling(gang="kueue", queue="research"))
    (world.scheduler,) = switched_on(names)
    (made,) = (each for each in plan(world.view()).actions if isinstance(each, CreateObject))
    assert (BOOST in made.manifest["metadata"]["annotations"]) == (names != ["kueue"])


TIMES = st.none() | st.floats(0, 10 * 3600).map(lambda ago: Time.of(START - ago))


@given(saved=TIMES, began=TIMES, admitted=st.booleans())
def test_it_is_never_above_the_priority_and_older_checkpoints_never_have_a_lower_one(saved, began, admitted):
    status = TrainingJobStatus(
        checkpoint=CheckpointStatus(step=1, time=saved) if saved is not None else None,
        attempts=[Attempt(round=1, start_time=began)],
    )
    now = boost(status, START, admitted=admitted)
    assert LOWEST <= now <= 0
    assert admitted or now == LOWEST
    assert now <= boost(status, START + 3600, admitted=admitted)
    fresh = replace(status, checkpoint=CheckpointStatus(step=2, time=Time.of(START)))
    assert boost(fresh, START, admitted=admitted) == LOWEST
