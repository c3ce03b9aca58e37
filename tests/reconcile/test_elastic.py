"""Elastic gangs train with fewer nodes and grow again; a spare takes the place of a lost pod at once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.reconcile.world import World

from torchyard.api.reasons import Reason
from torchyard.api.spec_placement import Elastic
from torchyard.api.spec_workload import Trainer
from torchyard.api.status import Attempt, Goodput, TrainingJobStatus
from torchyard.api.values import Duration
from torchyard.reconcile.actions import CommandAgent
from torchyard.reconcile.elastic import restart_cost

BOUNDS = Elastic(min_nodes=2, max_nodes=6, wait=Duration("10s"))
CVRP = Trainer(name="cvrp")


def elastic(nodes=4, **spec) -> World:
    return World(nodes, trainer=CVRP, elastic=BOUNDS, **spec)


def live(world: World, seconds: float, *, every: float = 5.0, save: bool = True, total: int = 10_000) -> None:
    """Run a healthy cluster for a while: pods come, rounds open, steps are made."""
    end = world.now + seconds
    while world.now < end:
        world.settle()
        world.finish_deletions()
        world.start_pods()
        world.settle()
        world.now += every
        world.advance_training(10, save=save, total=total)
        world.settle()


def indices(world: World) -> list[int]:
    """The indices of the members of the newest round, in rank order."""
    return [world.pods[uid].index for uid in world.status.rendezvous.members if uid in world.pods]


def lose(world: World, index: int) -> None:
    world.vanish(world.at(index))


def test_a_start_waits_for_missing_pods_and_then_trains_with_fewer():
    world = elastic()
    world.room = 3
    world.settle()
    world.start_pods()
    world.settle()
    assert world.status.round == 0
    world.now += 10
    world.settle()
    assert indices(world) == [0, 1, 2]
    world.advance_training(3)
    world.settle()
    assert (world.status.state, world.status.nodes.desired, world.status.nodes.ready) == ("Running", 4, 3)
    assert "on 3 of 4 nodes" in world.status.message


def test_fewer_than_the_minimum_do_not_train():
    world = elastic()
    world.room = 1
    live(world, 120)
    assert (world.status.round, world.status.state) == (0, "Pending")


def test_a_gang_that_loses_nodes_waits_shrinks_and_grows_back():
    world = elastic()
    live(world, 60)
    world.room = 2
    for index in (1, 2):
        lose(world, index)
    world.settle()
    world.now += 55
    world.settle()
    assert (world.status.state, world.status.round) == ("Recovering", 1)
    world.now += 5
    world.settle()
    assert (indices(world), world.status.round) == ([0, 3], 2)
    live(world, 60)
    assert world.status.restarts.total == 1
    world.room = None
    live(world, 120)
    assert len(world.pods) == 4, "the new pods wait, and their agents are warm"
    assert world.status.round == 2, "a round that has just begun is not ended"
    before = world.steps[world.at(0)]
    live(world, 200)
    assert (indices(world), world.status.round, world.status.restarts.total) == ([0, 1, 2, 3], 3, 1)
    (said,) = {event.message for event in world.events if event.reason == "Resizing"}
    assert "from 2 to 4 nodes" in said
    assert "left become about" in said
    assert world.status.attempts[1].reason == "Resizing"
    assert world.status.attempts[2].start_step >= before, "no step is repeated"


def test_a_gang_does_not_grow_for_the_last_minutes():
    world = elastic()
    world.room = 2
    live(world, 60, total=632)
    world.room = None
    live(world, 260, total=632)
    assert world.status.progress.eta_seconds < 10
    assert (world.status.round, world.status.state, len(world.pods)) == (1, "Running", 4)


@pytest.mark.parametrize("changes", [1, 5])
def test_a_restart_costs_as_much_after_many_changes_of_size_as_after_one(changes):
    rounds = changes + 1
    goodput = Goodput(seconds={"start": 20.0 * rounds, "restore": 4.0 * rounds})
    attempts = [Attempt(round=number, reason=Reason.RESIZING) for number in range(1, rounds)]
    assert restart_cost(TrainingJobStatus(round=rounds, goodput=goodput, attempts=attempts)) == 24.0


def test_a_program_is_only_stopped_when_it_has_just_saved():
    world = World(4, command=["train"], elastic=BOUNDS)
    world.room = 2
    live(world, 60, save=False)
    world.room = None
    live(world, 900, save=False)
    assert world.status.round == 1, "a program that never saves would begin again"
    world.advance_training(1, save=True, total=10_000)
    world.settle()
    assert world.status.reason != "Training" or world.status.round == 2
    live(world, 30, save=False)
    assert (world.status.round, indices(world)) == (2, [0, 1, 2, 3])


@pytest.mark.parametrize("size", [2, 6])
def test_a_gang_is_scaled_while_it_trains(size):
    world = elastic()
    live(world, 400)
    world.edit(nodes=size)
    live(world, 60)
    assert (indices(world), world.status.nodes.desired) == (list(range(size)), size)
    assert sorted(pod.index for pod in world.pods.values()) == list(range(size))
    assert world.status.restarts.total == 0


def test_a_suspension_that_arrives_while_the_gang_resizes_wins():
    world = elastic()
    live(world, 400)
    world.edit(nodes=2)
    world.step()
    assert world.status.reason == "Resizing"
    world.edit(suspend=True)
    world.settle()
    world.finish_deletions()
    world.settle()
    assert (world.status.state, world.pods) == ("Suspended", {})


def spare(nodes=3, spares=1, **spec) -> World:
    world = World(nodes, trainer=CVRP, spares=spares, **spec)
    live(world, 30)
    return world


def runs(world: World, uid: str) -> bool:
    command: CommandAgent | None = world.commands.get(uid)
    return command is not None and command.verb == "run"


def test_a_spare_waits_until_it_is_called():
    world = spare()
    assert (indices(world), len(world.pods), world.status.nodes.desired) == ([0, 1, 2], 4, 3)
    assert not runs(world, world.at(3))


@pytest.mark.parametrize("lost", [[1], [0, 2]])
def test_spares_take_the_places_of_lost_members_at_once(lost):
    world = spare(spares=2)
    members = set(world.status.rendezvous.members)
    for index in lost:
        lose(world, index)
    world.settle()
    assert world.status.round == 2, "nothing is waited for"
    assert len(world.status.rendezvous.members) == 3
    assert len(set(world.status.rendezvous.members) & members) == 3 - len(lost), "warm members stay"
    live(world, 60)
    assert len(world.pods) == 5, "the lost pods are replaced, and are the new spares"
    assert world.status.round == 2
    assert set(indices(world)) == {0, 1, 2, 3, 4} - set(lost) - ({4} if len(lost) == 1 else set())


def test_a_spare_that_dies_first_is_replaced_later_and_ends_no_round():
    world = spare()
    world.end_pod(world.at(3), 137, "OOMKilled")
    live(world, 30)
    assert (world.status.round, world.status.restarts.counted) == (1, 0)
    assert [pod.index for pod in world.pods.values()] == [0, 1, 2], "not at once: it would end again"
    live(world, 60)
    assert (world.status.round, len(world.pods)) == (1, 4)


def test_a_spare_that_is_gone_does_not_keep_the_gang_from_starting():
    world = World(3, trainer=CVRP, spares=1)
    world.room = 3
    live(world, 30)
    assert (world.status.state, indices(world)) == ("Running", [0, 1, 2])


def test_a_member_that_may_still_train_is_waited_for():
    """Its agent is silent: only the end of its pod proves that its workers are gone."""
    world = spare()
    uid = world.at(1)
    world.pods[uid] = replace(world.pods[uid], phase="Unknown")
    world.agents[uid] = replace(world.agents[uid], connected=False)
    world.end_workers(world.at(0), 1, exception="Error", message="x", rank=0)
    world.settle()
    assert world.status.round == 1
    world.now += 30
    world.settle()
    world.finish_deletions()
    world.settle()
    assert (world.status.round, indices(world)) == (2, [0, 2, 3])


@given(data=st.data(), spares=st.integers(0, 2))
@settings(max_examples=50)
def test_any_sequence_of_losses_and_returns_ends_at_full_size(data, spares):
    world = elastic(spares=spares)
    live(world, 30, every=15)
    for _ in range(data.draw(st.integers(1, 6))):
        world.room = data.draw(st.none() | st.integers(2, 6))
        for index in data.draw(st.sets(st.integers(0, 5), max_size=3)):
            pod = next((uid for uid, each in world.pods.items() if each.index == index), None)
            if pod is not None:
                world.vanish(pod)
        if data.draw(st.booleans()):
            world.restart_operator()
        live(world, data.draw(st.sampled_from([15, 90, 400])), every=45)
        assert 2 <= len(world.status.rendezvous.members) <= 4 or world.status.round == 0
    world.room = None
    live(world, 900, every=60, total=100_000)
    assert (world.status.state, len(world.status.rendezvous.members)) == ("Running", 4)
    assert len(world.pods) == 4 + spares
    assert world.status.restarts.counted == 0


def test_no_spare_is_created_while_a_suspended_gang_saves():
    world = World(2, trainer=CVRP, spares=1)
    live(world, 30)
    world.end_pod(world.at(2), 76)
    world.settle()
    world.edit(suspend=True)
    before = len(world.created)
    world.step()
    for uid in world.status.rendezvous.members:
        world.agents[uid] = replace(world.agents[uid], state="running", exit=None)  # it still saves
    world.now += 61.0
    world.step()
    assert (world.status.state, len(world.created)) == ("Suspending", before)
