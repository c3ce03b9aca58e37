"""`spec.debug.keepFailedPod`: one failed pod stays for people to look at, and holds up nothing."""

from tests.support.reconcile.world import World

from torchyard.api.spec_reliability import Debug
from torchyard.api.values import Duration


def failing(**spec) -> World:
    world = World(2, debug=Debug(keep_failed_pod=Duration("1h")), **spec).to_running()
    world.end_pod(world.at(1), 137)
    world.settle()
    return world


def recovered(world: World) -> World:
    world.now += 60
    world.settle()
    world.start_pods()
    world.settle()
    world.advance_training()
    world.settle()
    assert world.status.state == "Running"
    return world


def names(world: World) -> set[str]:
    return {pod.name for pod in world.pods.values()}


def test_the_pod_of_the_newest_failure_stays_while_the_gang_goes_on():
    world = recovered(failing())
    assert (world.status.kept_pod.name, world.status.kept_pod.round) == ("job-0-1", 1)
    assert names(world) == {"job-0-0", "job-1-1", "job-0-1"}


def test_a_kept_pod_is_deleted_when_its_time_is_over():
    world = recovered(failing())
    assert world.step().requeue_after is not None
    world.now = world.status.kept_pod.until
    world.settle()
    assert (world.status.kept_pod, names(world)) == (None, {"job-0-0", "job-1-1"})


def test_only_the_newest_failure_keeps_its_pod():
    world = recovered(failing())
    world.end_pod(world.at(0), 137)
    world.settle()
    recovered(world)
    assert world.status.kept_pod.name == "job-0-0"
    assert names(world) == {"job-0-0", "job-1-1", "job-2-0"}


def test_a_kept_pod_outlives_a_suspension_but_not_the_setting():
    world = recovered(failing())
    world.edit(suspend=True)
    world.settle()
    world.finish_deletions()
    world.settle()
    assert (world.status.state, names(world)) == ("Suspended", {"job-0-1"})
    world.edit(debug=Debug())
    world.settle()
    assert (world.status.kept_pod, names(world)) == (None, set())


def test_without_the_setting_no_pod_stays():
    world = World(2).to_running()
    world.end_pod(world.at(1), 137)
    world.settle()
    assert names(world) == {"job-0-0", "job-1-1"}
