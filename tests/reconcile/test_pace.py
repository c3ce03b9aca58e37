"""Slow ranks, and gangs that are slower than they were. Figures of the ranks -> warnings, events, replacement."""

import random

import pytest
from msgspec.structs import replace
from tests.support.reconcile.world import World

from torchyard.api.spec_reliability import Health
from torchyard.api.spec_workload import Trainer
from torchyard.client.explanation import explanation
from torchyard.reconcile.observed import RankReport

STEADY = 0.118


def reported(world, compute, *, step=None, low=None):
    """Every rank reports its compute time of 200 steps, in seconds; None: it does not know its waits."""
    world.now += 10.0
    slowest = step if step is not None else max(each or STEADY for each in compute)
    for rank, seconds in enumerate(compute):
        uid = world.at(rank)
        quarter = seconds if low is None or seconds is None else low[rank]
        report = RankReport(
            round=world.status.round,
            rank=rank,
            step=200,
            phase="step",
            time=world.now,
            device="cuda:1 NVIDIA H100",
            window_steps=200,
            step_seconds=slowest,
            compute_seconds=seconds,
            compute_low_seconds=quarter,
        )
        world.agents[uid] = replace(world.agents[uid], reports=(report,))
    world.settle()
    return world


def warned(world):
    return [event.message for event in world.events if event.type == "Warning"]


def gang(nodes=4, **spec):
    return World(nodes, **spec).to_running()


def test_a_slow_rank_is_named_once_with_node_device_and_figures():
    world = gang()
    slow = 1.9 * STEADY
    for noise in (1.0, 1.01, 0.98, 1.05):
        reported(world, [STEADY, STEADY, slow * noise, STEADY])
    node = world.pods[world.at(2)].node
    (message,) = warned(world)
    assert f"rank 2 on node {node} (cuda:1 NVIDIA H100): 1.9x the median of 118 ms for 200 steps" in message
    assert world.status.warnings == [message]
    assert [event.reason for event in world.events if event.type == "Warning"] == ["Straggler"]


def test_a_rank_that_has_recovered_is_named_no_more():
    world = reported(gang(), [STEADY, STEADY, 1.6 * STEADY, STEADY])
    reported(world, [STEADY, STEADY, 1.2 * STEADY, STEADY])
    assert [each.rank for each in world.status.pace.stragglers] == [2]
    reported(world, [STEADY, STEADY, 1.1 * STEADY, STEADY])
    assert world.status.pace.stragglers == []
    assert world.status.warnings == []


@pytest.mark.parametrize(
    ("compute", "low", "named"),
    [
        ([0.1, 0.1, 0.15, 0.1], None, [2]),
        ([0.1, 0.15], None, [1]),
        ([0.1, 0.1, 0.15, 0.1], [0.1, 0.1, 0.11, 0.1], []),  # only some of its steps are slow
        ([0.1, 0.1, 0.125, 0.1], None, []),
        ([0.001, 0.001, 0.003, 0.001], None, []),  # what a process does beside its step, not the hardware
        ([0.08, 0.1, 0.12, 0.14, 0.16, 0.19], None, []),  # the ranks have unequal work
        ([0.1, 0.1, None, 0.3], None, []),  # a rank that does not know its waits may be the slow one
        ([0.1, 0.1, 0.1, 0.1, 0.2, 0.2], None, [4, 5]),
        ([0.3], None, []),
    ],
)
def test_which_ranks_are_slow(compute, low, named):
    world = reported(gang(len(compute)), compute, low=low)
    assert sorted(each.rank for each in world.status.pace.stragglers) == named


def test_noise_of_a_clean_gang_is_no_alarm():
    chance = random.Random(7)
    world = gang(8)
    for _ in range(200):
        mids = [chance.lognormvariate(0, 0.06) * STEADY for _ in range(8)]
        reports = reported(world, mids, low=[mid * 0.95 for mid in mids])
        assert reports.status.pace.stragglers == []


def test_a_gang_that_becomes_slower_is_compared_with_its_own_history():
    world = reported(gang(), [STEADY] * 4, step=0.120)
    for _ in range(8):
        reported(world, [1.6 * STEADY] * 4, step=0.192)
    (message,) = warned(world)
    assert "the steps of all ranks take longer than before (1.6x of what they took before in this job: " in message
    assert "192 ms instead of 120 ms, for 1m, on all 4 ranks)" in message
    reported(world, [STEADY] * 4, step=0.121)
    assert world.status.warnings == []


def test_without_measured_waits_the_pace_is_known_and_no_rank_is_named():
    world = reported(gang(), [None] * 4, step=0.2)
    assert (world.status.pace.step_seconds, world.status.pace.compute_seconds) == (0.2, None)
    assert "slow ranks cannot be found" in str(explanation(world.job, (), (), "here", "", world.now))
    assert warned(world) == []


def test_nothing_is_said_where_it_is_switched_off():
    world = reported(gang(health=Health(straggler=False)), [STEADY, 3 * STEADY, STEADY, STEADY])
    assert (world.status.pace, world.status.warnings) == (None, [])


def with_a_spare():
    world = World(2, trainer=Trainer(name="cvrp"), spares=1, health=Health(replace_straggler=True))
    world.settle()
    world.start_pods()
    world.settle()
    world.advance_training(3, save=True)
    world.settle()
    assert world.status.state == "Running"
    return world


def test_a_spare_takes_the_place_of_a_slow_pod_once():
    world = with_a_spare()
    slow = world.pods[world.at(1)]
    reported(world, [STEADY, 1.9 * STEADY])
    (said,) = [event.message for event in world.events if event.reason == "ReplacingStraggler"]
    assert f"rank 1 on node {slow.node}" in said
    for _ in range(10):
        world.now += 5
        world.settle()
        world.finish_deletions()
        world.start_pods()
        world.settle()
    assert slow.uid not in world.pods
    assert (world.status.round, [world.pods[uid].index for uid in world.status.rendezvous.members]) == (2, [0, 2])
    (former, _) = world.status.attempts
    assert (former.reason, former.cause.rank, former.cause.node) == ("ReplacingStraggler", 1, slow.node)
    assert world.status.restarts.counted == 0
    world.advance_training(3, save=True)
    world.settle()
    for rank, uid in enumerate(world.status.rendezvous.members):
        report, own = world.agents[uid].reports[0], (0.1, 0.3)[rank]
        figures = {"window_steps": 200, "step_seconds": 0.3, "compute_seconds": own, "compute_low_seconds": own}
        again = replace(report, **figures)
        world.agents[uid] = replace(world.agents[uid], reports=(again,))
    world.settle()
    assert [each.rank for each in world.status.pace.stragglers] == [1]
    assert world.status.round == 2, "the rank is slow on another node, too: its work is what is slow"
