"""What a job needs to be complete, and what happens to it afterwards."""

import pytest
from msgspec.structs import replace
from tests.support.reconcile.scenarios import condition, of
from tests.support.reconcile.world import World

from torchyard.api.status import Artifact
from torchyard.api.values import Duration, Time
from torchyard.reconcile.actions import CommandAgent, DeleteJob, DeletePod, WriteStatus
from torchyard.reconcile.plan import plan, stalled


def test_success_needs_every_member():
    world = World(2).to_running()
    world.end_workers(world.at(0), 0)
    world.settle()
    assert world.status.state == "Running"
    world.end_workers(world.at(1), 0)
    decided = world.step()
    assert (world.status.state, world.status.completion_time) == ("Succeeded", Time.of(world.now))
    assert [(each.verb, each.code) for each in of(CommandAgent, decided)] == [("exit", 0), ("exit", 0)]
    assert condition(world, "Complete").status == "True"


def test_completion_is_seen_without_the_agents():
    world = World(2).to_running()
    for index in (0, 1):
        world.end_pod(world.at(index), 0)
    world.restart_operator()
    world.settle()
    assert world.status.state == "Succeeded"


@pytest.mark.parametrize("files_stay", [True, False])
def test_a_completed_job_warns_if_its_results_are_lost_with_its_pods(files_stay):
    world = World(1).to_running()
    world.files_stay = files_stay
    uid = world.at(0)
    world.report(uid, 1, 5)
    made = (Artifact(name="export/web", uri="export/web"),)
    world.agents[uid] = replace(world.agents[uid], reports=(replace(world.agents[uid].reports[0], artifacts=made),))
    world.settle()
    world.end_workers(uid, 0)
    world.settle()
    assert [each.name for each in world.status.artifacts] == ["export/web"]
    assert ("spec.checkpoint.volume names no claim" in world.status.message) is not files_stay


def test_pods_of_a_finished_job_that_do_not_go_are_deleted():
    world = World(1).to_running()
    uid = world.at(0)
    world.end_workers(uid, 0)
    world.settle()
    world.pods[uid] = replace(world.pods[uid], phase="Running")  # it did not obey
    assert of(DeletePod, plan(world.view())) == []
    world.now += 31
    assert [each.uid for each in of(DeletePod, plan(world.view()))] == [uid]


def test_a_pod_of_a_finished_job_with_a_running_sidecar_is_deleted_too():
    world = World(2).to_running()
    for index in (0, 1):
        world.end_workers(world.at(index), 0)
    world.settle()
    (lingers, over) = world.pods
    world.pods[lingers] = replace(world.pods[lingers], lingers=True)
    assert plan(world.view()).requeue_after == 30
    world.now += 31
    assert [each.uid for each in of(DeletePod, plan(world.view()))] == [lingers], "the other is kept for its logs"
    assert not world.pods[over].alive


def test_a_finished_job_is_stalled_only_as_long_as_something_is_left_to_do():
    world = World(1).to_running()
    uid = world.at(0)
    world.end_workers(uid, 0)
    world.settle()
    over = stalled(world.status, world.now, generation=1, evidence="DELETE pods is refused")
    world.job = replace(world.job, status=over)
    going, world.pods[uid] = world.pods[uid], replace(world.pods[uid], phase="Running")
    world.now += 31
    decided = plan(world.view())
    assert (len(of(DeletePod, decided)), of(WriteStatus, decided)) == (1, []), "it may fail again"
    world.pods[uid] = going
    world.settle()
    assert condition(world, "Stalled").status == "False"
    assert (world.status.state, world.status.completion_time) == ("Succeeded", over.completion_time)


def test_an_edit_of_a_finished_job_is_seen_and_changes_nothing():
    world = World(1).to_running()
    world.end_workers(world.at(0), 0)
    world.settle()
    before = world.status
    world.edit(suspend=True, ttl_after_finished=Duration("1h"))
    world.settle()
    assert (world.status.state, world.status.observed_generation) == ("Succeeded", 2)
    assert {each.observed_generation for each in world.status.conditions} == {2}
    assert [each.last_transition_time for each in world.status.conditions] == [
        each.last_transition_time for each in before.conditions
    ]


def test_a_finished_job_is_deleted_after_its_ttl_and_not_before():
    world = World(1, ttl_after_finished=Duration("1h")).to_running()
    world.end_workers(world.at(0), 0)
    world.settle()
    world.now += 3599
    assert plan(world.view()).requeue_after == 1
    world.now += 1
    assert plan(world.view()).actions == (DeleteJob(uid="job-uid"),)


@pytest.mark.parametrize("finalizers", [[], ["orphan"], ["foregroundDeletion", "example.com/books"]])
def test_a_deleted_job_is_left_alone(finalizers):
    world = World(2).to_running()
    world.vanish(world.at(1))
    _delete(world, finalizers)
    assert plan(world.view()).actions == ()


def test_a_deleted_job_that_a_finalizer_of_another_controller_holds_is_terminating_and_has_no_pods():
    world = World(2, grace_period=Duration("40s")).to_running()
    _delete(world, ["example.com/books", "a.example.com/audit"])
    (write, *deletes) = plan(world.view()).actions
    assert [(each.uid, each.grace_seconds) for each in deletes] == [(world.at(0), 40.0), (world.at(1), 40.0)]
    world.carry_out(write)
    status = world.status
    assert (status.state, status.reason) == ("Terminating", "Terminating")
    assert "(a.example.com/audit, example.com/books)" in status.message
    assert (status.progress.eta_seconds, condition(world, "Running").status) == (None, "False")
    assert (condition(world, "Reconciling").status, condition(world, "Ready").status) == ("True", "False")
    world.settle()
    world.finish_deletions()
    world.settle()
    assert (plan(world.view()).actions, world.status.nodes.ready) == ((), 0)


def test_a_finished_job_that_a_finalizer_holds_keeps_its_outcome():
    world = World(1).to_running()
    world.end_workers(world.at(0), 0)
    world.settle()
    _delete(world, ["example.com/books"])
    world.settle()
    assert world.status.state == "Succeeded"


def _delete(world, finalizers):
    gone = replace(world.job.metadata, deletion_timestamp=Time.of(world.now), finalizers=finalizers)
    world.job = replace(world.job, metadata=gone)
