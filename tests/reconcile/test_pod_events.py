"""Events of lost pods are kept at the round that each pod ended, also when the job is over."""

from msgspec.structs import replace
from tests.support.reconcile.world import World

from torchyard.api.status import TrainingJobStatus
from torchyard.reconcile.failures import MAX_EVENTS
from torchyard.reconcile.observed import Pod

EVENTS = ("2026-11-30T10:00:00Z NodeNotReady: Node is not ready",)


def explained(world: World, pod: Pod, *events: str) -> TrainingJobStatus:
    """Return the status once the events of this pod, which has vanished, are known."""
    world.pods[pod.uid] = replace(pod, phase="Failed", reason="PodLost", deleting=True, events=events)
    world.step()
    del world.pods[pod.uid]
    world.settle()
    return world.status


def test_the_round_that_a_pod_ended_has_its_last_events_once():
    world = World(2).to_running()
    pod = world.pods[world.at(1)]
    world.end_pod(pod.uid, 137)
    world.settle()
    assert explained(world, pod, "first", *9 * EVENTS).attempts[-1].cause.events == [*(MAX_EVENTS * EVENTS)]
    assert explained(world, pod, "later").attempts[-1].cause.events == [*(MAX_EVENTS * EVENTS)]


def test_a_job_that_has_failed_gets_them_too_and_they_stay():
    world = World(1).to_running()
    pod = world.pods[world.at(0)]
    world.end_pod(pod.uid, 64)
    world.settle()
    assert world.status.state == "Failed"
    status = explained(world, pod, *EVENTS)
    assert (status.state, status.attempts[-1].cause.events) == ("Failed", [*EVENTS])
