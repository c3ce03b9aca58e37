"""A node that announces its end: the gang saves, its pods move to other nodes, and nothing is charged."""

from msgspec.structs import replace
from tests.support.reconcile.world import World

from torchyard.api.spec_workload import Trainer

NOTICE = "taint aws-node-termination-handler/spot-itn"


def announce(world: World, index: int) -> str:
    uid = world.at(index)
    world.pods[uid] = replace(world.pods[uid], leaving=NOTICE)
    return uid


def live(world: World) -> None:
    for _ in range(3):
        world.settle()
        world.finish_deletions()
        world.start_pods()
        world.settle()
        world.now += 2
        world.advance_training()


def test_the_gang_saves_and_only_the_pod_on_that_node_moves():
    world = World(2, trainer=Trainer(name="cvrp")).to_running()
    stays, steps = world.at(0), world.steps[world.at(0)]
    leaves = announce(world, 1)
    world.step()
    assert world.status.message.endswith(f"(node node-1: {NOTICE})")
    assert {command.verb for command in world.commands.values()} == {"save-and-stop"}
    live(world)
    assert (world.status.state, world.status.round, world.status.restarts.total) == ("Running", 2, 0)
    assert leaves not in world.pods
    assert world.status.rendezvous.members[0] == stays
    assert world.checkpoint == steps
    assert [event.reason for event in world.events].count("NodeLeaving") == 1


def test_a_spare_takes_over_before_the_pod_is_gone():
    world = World(2, trainer=Trainer(name="cvrp"), spares=1).to_running()
    leaves = announce(world, 1)
    world.settle()
    assert (world.status.round, world.pods[leaves].deleting) == (2, True)
    assert leaves not in world.status.rendezvous.members


def test_a_suspended_job_and_pods_without_agents_are_left_alone():
    suspended = World(1, trainer=Trainer(name="cvrp")).to_running()
    announce(suspended, 0)
    suspended.edit(suspend=True)
    live(suspended)
    assert suspended.status.state == "Suspended"
