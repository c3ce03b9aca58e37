"""What people are notified of: each transition once, with the same id when the status is read again."""

import json

from msgspec.structs import replace
from tests.support.reconcile.world import World

from torchyard.api.status import State, TrainingJobStatus
from torchyard.reconcile.notifications import cloud_event, encoded, new_notifications, notifications_of


def followed(world):
    """Follow a world; return what each step of it made known."""
    found = []

    def step():
        before = world.status
        world.settle()
        found.extend(new_notifications(world.job.metadata.uid, before, world.status))
        return found

    return step


def failed_once():
    world = World(2).to_running()
    step = followed(world)
    world.advance_training(5, save=True)
    world.end_workers(world.at(1), 1, exception="ValueError: the second rank")
    return world, step


def test_a_failed_round_is_announced_with_its_first_cause():
    _, step = failed_once()
    (recovering,) = (each for each in step() if each.state == State.RECOVERING)
    assert (recovering.round, recovering.cause.exception) == (1, "ValueError: the second rank")
    assert "ValueError: the second rank" in recovering.message


def test_each_transition_is_announced_once_from_start_to_end():
    world, step = failed_once()
    for _ in range(30):
        world.now += 2
        world.start_pods()
        step()
    world.advance_training(5)
    step()
    states = [each.state for each in step()]
    assert states.count(State.RECOVERING) == 1
    assert states[-1] == State.RUNNING
    assert len({each.id for each in step()}) == len(step())


def test_a_status_that_is_read_later_proves_the_same_ids():
    world, step = failed_once()
    seen = {each.id for each in step()}
    uid = world.job.metadata.uid
    assert {each.id for each in notifications_of(uid, world.status)} >= seen
    assert not new_notifications(uid, world.status, world.status)


def test_figures_alone_are_no_transition():
    world = World(1).to_running()
    before = world.status
    world.advance_training(5)
    world.settle()
    assert world.status != before
    assert new_notifications("uid", before, world.status) == []


def test_a_failure_that_ends_the_job_is_announced_once():
    world = World(1, restart={"maxRestarts": 0}).to_running()
    step = followed(world)
    world.end_workers(world.at(0), 64, exception="unknown parameter")
    (ended,) = step()
    assert (ended.state, ended.cause.exception) == (State.FAILED, "unknown parameter")


def test_an_event_has_its_link_and_no_lines_of_the_program():
    world = World(1, restart={"maxRestarts": 0}).to_running()
    step = followed(world)
    world.end_workers(world.at(0), 64, exception="no")
    (ended,) = step()
    ended = replace(ended, cause=replace(ended.cause, lines=["password: hunter2"]))
    link = "https://grafana/d/torchyard?var-namespace={namespace}&var-job={name}&c={cluster}"
    event = json.loads(encoded(cloud_event(world.job, ended, link=link, cluster="a b&c")))
    assert event["type"] == "dev.torchyard.trainingjob.failed"
    assert event["source"] == "/clusters/a%20b%26c/namespaces/default/trainingjobs/job"
    assert event["data"]["link"] == "https://grafana/d/torchyard?var-namespace=default&var-job=job&c=a%20b%26c"
    assert event["data"]["cause"]["class"] == world.status.reason
    assert b"hunter2" not in encoded(event)


def test_a_new_job_proves_nothing():
    assert list(notifications_of("uid", TrainingJobStatus())) == []
