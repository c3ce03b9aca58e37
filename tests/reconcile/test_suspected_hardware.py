"""A worker that finds its hardware missing or broken: the pod is replaced on another node, once."""

from tests.support.reconcile.scenarios import recover
from tests.support.reconcile.world import World

from torchyard.api.exit_codes import ExitCode


def opened(nodes):
    """A round whose workers have not made a step: hardware is checked before."""
    world = World(nodes)
    world.settle()
    world.start_pods()
    world.settle()
    return world


def suspects(world, index, said):
    uid = world.at(index)
    world.end_workers(uid, ExitCode.HARDWARE, exception=said)
    world.settle()
    world.finish_deletions()
    return uid


def test_the_pod_is_replaced_and_its_node_avoided_while_the_others_stay():
    world = opened(2)
    other = world.at(0)
    suspected = suspects(world, 1, "the job asks for 8 GPUs, 7 can be used")
    assert (world.status.state, world.status.reason) == ("Recovering", "HardwareSuspected")
    recover(world, 3)
    assert world.status.state == "Running"
    assert world.at(0) == other
    assert suspected not in world.status.rendezvous.members
    assert world.created[-1].avoid == ("node-1",)
    assert (world.status.restarts.total, world.status.restarts.counted) == (1, 1)


def test_the_same_fault_on_another_node_ends_the_job():
    """It is no node's then, but of the image or the job."""
    world = opened(1)
    said = "the job asks for 1 GPU, but torch is built without CUDA"
    suspects(world, 0, said)
    recover(world)
    suspects(world, 0, said)
    assert (world.status.state, world.status.reason) == ("Failed", "RepeatedFailure")
    assert said in world.status.message
