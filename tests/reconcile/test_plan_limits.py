"""Suspend, deadline and time-outs."""

import pytest
from msgspec.structs import replace
from tests.support.reconcile.scenarios import condition, fail, of, recover
from tests.support.reconcile.world import START, World

from torchyard.api.spec_reliability import Checkpoint, Health, Restart
from torchyard.api.spec_workload import Trainer
from torchyard.api.status import TrainingJobStatus
from torchyard.api.values import Duration
from torchyard.reconcile.actions import CommandAgent, DeletePod, WriteStatus
from torchyard.reconcile.observed import RankReport
from torchyard.reconcile.plan import plan


def test_suspend_saves_first_then_gives_every_pod_up_and_resume_continues():
    world = World(2).to_running()
    world.advance_training(5)
    world.edit(suspend=True)
    decided = world.step()
    assert {(each.verb, each.grace_seconds) for each in of(CommandAgent, decided)} == {("save-and-stop", 60.0)}
    assert of(DeletePod, decided) == []
    world.settle()
    world.finish_deletions()
    world.settle()
    assert (world.status.state, world.pods) == ("Suspended", {})
    assert condition(world, "Progressing").status == "False"
    world.edit(suspend=False)
    recover(world, 1)
    assert (world.status.state, world.status.round) == ("Running", 2)
    assert {pod.name for pod in world.pods.values()} == {"job-1-0", "job-1-1"}
    assert world.status.restarts.total == 0


@pytest.mark.parametrize("files_stay", [True, False])
def test_a_suspended_job_has_a_checkpoint_only_where_files_outlive_the_pods(files_stay):
    world = World(2).to_running()
    world.files_stay = files_stay
    world.report(world.at(0), 1, 5, save=True)
    world.settle()
    world.edit(suspend=True)
    world.settle()
    world.finish_deletions()
    world.settle()
    status = world.status
    assert status.state == "Suspended"
    assert (condition(world, "CheckpointReady").status == "True", status.checkpoint is not None) == (files_stay,) * 2
    assert ("no checkpoint: its files are lost with its pods" in status.message) is not files_stay
    assert ("checkpoint of step 5" in status.message) is files_stay


def test_a_resume_before_the_former_pods_are_gone_names_them():
    world = World(2).to_running()
    world.edit(suspend=True)
    world.step()
    obey, world.obey = world.obey, lambda _uid: None  # saved, and slow to go
    world.settle()
    world.edit(suspend=False)
    world.settle()
    assert (world.status.state, world.status.reason) == ("Pending", "WaitingForPods")
    assert "job-0-0 is still stopping; job-0-1 is still stopping" in world.status.message
    world.obey = obey
    world.finish_deletions()
    recover(world, 1)
    assert world.status.state == "Running"


def test_a_resume_after_a_failure_is_not_a_recovery():
    world = World(1).to_running()
    fail(world)
    world.edit(suspend=True)
    world.settle()
    world.finish_deletions()
    world.settle()
    assert world.status.state == "Suspended"
    world.edit(suspend=False)
    world.settle()
    assert (world.status.state, condition(world, "Recovering").status) == ("Pending", "False")


def test_a_suspend_that_cannot_save_ends_with_the_grace_period():
    world = World(1, grace_period=Duration("30s")).to_running()
    uid = world.at(0)
    world.edit(suspend=True)
    world.obey = lambda _uid: None
    decided = world.step()
    assert decided.requeue_after == pytest.approx(40, abs=1)
    world.now += 41
    world.step()
    assert world.pods[uid].deleting


def test_a_suspend_waits_for_no_member_that_never_heard_of_the_round():
    world = World(2)
    world.settle()
    world.start_pods()
    for uid in world.pods:
        world.call_in(uid)
    obey, world.obey = world.obey, lambda _uid: None
    world.step()
    assert (world.status.round, world.status.rendezvous.open) == (1, True)
    world.edit(suspend=True)
    world.obey = obey
    world.settle()
    assert not world.status.rendezvous.open, "no worker runs: there is no grace period to wait out"
    world.finish_deletions()
    world.settle()
    assert (world.status.state, world.status.restarts.total) == ("Suspended", 0)


ENDED = {"answer": "ended", "answer_seconds": 8.2, "answer_code": 0}
KILLED = {"answer": "killed", "answer_seconds": 30.1}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (ENDED, "ended by itself with exit code 0, 8 s after SIGTERM"),
        (KILLED, "had not ended 30 s after it was asked to save, and was killed"),
        ({"answer": "deaf"}, "does not handle SIGTERM, so it was ended without a save"),
        ({"answer": "<b>"}, ""),
        ({}, ""),
    ],
)
def test_a_suspend_reports_the_response_of_the_program_and_claims_no_save(answer, said):
    world = World(2).to_running()
    world.answer = answer
    world.edit(suspend=True)
    world.settle()
    world.finish_deletions()
    world.settle()
    assert world.status.state == "Suspended"
    assert (said or "(the program has reported no checkpoint);") in world.status.message
    assert ("; the program" in world.status.message) == bool(said)


def test_steps_that_are_counted_from_the_start_of_a_later_round_are_called_so():
    world = World(1).to_running()
    fail(world)
    recover(world, 1)
    world.agents = {
        uid: replace(agent, reports=tuple(replace(report, from_start=True) for report in agent.reports))
        for uid, agent in world.agents.items()
    }
    world.settle()
    says = "counted from the start of this round: the program does not say at which step it resumed"
    assert says in world.status.message
    assert "counted from" not in World(1).to_running().status.message


def test_without_on_preempt_a_suspend_just_stops():
    world = World(1, checkpoint=Checkpoint(on_preempt=False)).to_running()
    world.edit(suspend=True)
    assert of(CommandAgent, world.step())[0].verb == "stop"


def test_a_job_submitted_suspended_creates_nothing():
    world = World(2, suspend=True)
    world.settle()
    assert (world.status.state, world.created) == ("Suspended", [])


def test_the_deadline_counts_from_the_first_start_across_suspends():
    world = World(1, active_deadline=Duration("1h")).to_running()
    assert plan(world.view()).requeue_after == 60, "then the message tells the age of the last step"
    world.edit(suspend=True)
    world.settle()
    world.now = START + 3600
    world.settle()
    assert (world.status.state, world.status.reason) == ("Failed", "DeadlineExceeded")


def test_a_trainer_without_a_first_step_in_time_gets_another_round_then_fails():
    world = World(
        1,
        trainer=Trainer(name="cvrp"),
        health=Health(start_timeout=Duration("5m")),
        restart=Restart(no_progress_limit=2),
    )
    world.settle()
    world.start_pods()
    world.settle()
    assert plan(world.view()).requeue_after == 60, "then it says whose workers are not heard"
    world.now += 301
    world.agents[world.at(0)] = replace(
        world.agents[world.at(0)], reports=(RankReport(round=1, phase="init", time=world.now),)
    )
    world.settle()
    assert world.status.attempts[0].reason == "StartTimeout"
    recover(world)
    world.now += 301
    world.agents[world.at(0)] = replace(
        world.agents[world.at(0)], reports=(RankReport(round=2, phase="init", time=world.now),)
    )
    world.settle()
    assert (world.status.state, world.status.reason) == ("Failed", "NoProgress")


def test_a_trainer_whose_workers_are_never_heard_does_not_count_as_started():
    world = World(2, trainer=Trainer(name="cvrp"), health=Health(start_timeout=Duration("5m")))
    world.settle()
    world.start_pods()
    world.settle()
    assert plan(world.view()).requeue_after == 60, "then silence says something"
    for turn in range(9):
        world.now += 31
        world.settle()
        assert world.status.state == "Starting", "nothing trains"
        assert world.status.reason == ("WorkersSilent" if turn else "Starting")
    assert "(none in job-0-0, job-0-1 since " in world.status.message
    assert [each.reason for each in world.events if each.type == "Warning"] == ["WorkersSilent"]
    assert plan(world.view()).requeue_after == pytest.approx(300 - 9 * 31, abs=1)
    world.now += 31
    world.settle()
    assert world.status.attempts[0].reason == "StartTimeout"
    assert "no worker has reported" in world.status.attempts[0].cause.exception


def test_an_agent_that_never_gets_ready_ends_the_job_as_one_that_never_calls_does():
    world = World(2, health=Health(start_timeout=Duration("5m")))
    world.settle()
    world.start_pods()
    hanging = world.at(1)
    world.agents[hanging] = replace(world.agents[hanging], state="starting")
    world.settle()
    assert plan(world.view()).requeue_after == 300
    world.now += 300
    world.settle()
    assert (world.status.state, world.status.reason) == ("Failed", "StartTimeout")
    assert "the agent in job-0-1 never got ready" in world.status.message


def test_an_agent_that_is_restarted_has_the_whole_time_to_get_ready():
    world = World(2, health=Health(start_timeout=Duration("5m"))).to_running()
    world.now += 9999
    again = world.at(1)
    world.commands.pop(again)
    world.call_in(again)
    world.agents[again] = replace(world.agents[again], state="starting")
    world.settle()
    assert (world.status.state, world.status.rendezvous.open) == ("Recovering", False)
    world.now += 299
    world.settle()
    assert world.status.state == "Recovering"
    world.now += 1
    world.settle()
    assert (world.status.state, world.status.reason) == ("Failed", "StartTimeout")


@pytest.mark.parametrize("kept", ["nothing", "a closed round", "an open round"])
def test_pods_that_know_a_newer_round_than_the_status_are_replaced_and_not_waited_for(kept):
    world = World(2).to_running()
    copy = world.status if kept == "an open round" else TrainingJobStatus()
    fail(world)
    while world.status.rendezvous.open:
        world.step()
    copy = world.status if kept == "a closed round" else copy
    recover(world, steps=3, save=True)
    former = set(world.pods)
    assert (world.status.round, set(world.training)) == (2, former)
    world.job = replace(world.job, status=copy)
    world.restart_operator()
    if not copy.rendezvous.open:
        (write, *_), deletes = plan(world.view()).actions, of(DeletePod, plan(world.view()))
        assert isinstance(write, WriteStatus)
        assert write.urgent, "the new incarnation is kept before anything is done"
        assert {each.uid for each in deletes} == former
    world.settle()
    assert not world.status.rendezvous.open, "nothing opens beside what still runs"
    world.finish_deletions()
    recover(world, steps=1)
    assert (world.status.state, world.status.restarts.counted) == ("Running", copy.restarts.counted)
    assert not former & set(world.pods)
    assert {pod.incarnation for pod in world.pods.values()} == {world.status.incarnation}


def test_an_operator_that_was_away_does_not_hold_its_own_absence_against_the_job():
    world = World(1, trainer=Trainer(name="cvrp"), health=Health(start_timeout=Duration("5m")))
    world.settle()
    world.start_pods()
    world.settle()
    world.now += 9999
    world.restart_operator()
    world.settle()
    assert (world.status.round, world.status.restarts.total) == (1, 0)


def test_a_program_that_reports_nothing_counts_as_running_after_a_while_and_is_never_timed_out():
    world = World(1, command=["sleep", "1d"])
    world.settle()
    world.start_pods()
    world.settle()
    assert plan(world.view()).requeue_after == 30
    world.now += 86400
    world.settle()
    assert (world.status.state, world.status.round) == ("Running", 1)


def test_a_clock_that_is_ahead_of_the_api_servers_fails_no_job_that_waits():
    world = World(1, health=Health(pending_timeout=Duration("10m")))
    world.now = world.since = START + 3600
    world.settle()
    uid = world.at(0)
    world.pods[uid] = replace(world.pods[uid], created=START)
    world.settle()
    assert world.status.state == "Pending"
    world.now += 600
    world.settle()
    assert (world.status.state, world.status.reason) == ("Failed", "PendingTimeout")


def test_pods_that_are_never_placed_end_the_job_if_the_user_said_so():
    world = World(1, health=Health(pending_timeout=Duration("10m")))
    world.settle()
    assert plan(world.view()).requeue_after == 600
    world.now += 600
    world.settle()
    assert (world.status.state, world.status.reason) == ("Failed", "PendingTimeout")
    assert world.pods == {}
