"""What the plan decides, rule by rule, as a user meets it."""

import pytest
from msgspec.structs import replace
from world import START, World

from torchyard.api.spec import TrainingJobSpec
from torchyard.api.spec_reliability import Backoff, Checkpoint, Health, Restart
from torchyard.api.spec_workload import Trainer
from torchyard.api.status import CONDITION_TYPES, TrainingJobStatus
from torchyard.api.times import rfc3339, unix
from torchyard.engine.actions import CommandAgent, CreatePod, DeleteJob, DeletePod, EmitEvent, WriteStatus
from torchyard.engine.plan import plan
from torchyard.engine.view import GpuReport, RankReport


def of(kind, decided):
    return [action for action in decided.actions if isinstance(action, kind)]


def condition(world, kind):
    return next(each for each in world.status.conditions if each.type == kind)


def fail(world, index=0, code=1, **failure):
    world.end_workers(world.at(index), code, **({"exception": "ValueError", "message": "boom"} | failure))


def recover(world, steps=0, *, save=False):
    """The next round opens and makes steps."""
    world.settle()
    world.now += 400
    world.start_pods()
    world.settle()
    world.start_pods()
    world.settle()
    if steps:
        world.advance_training(steps, save=save)
        world.settle()
    return world


# Starting.


def test_the_first_visit_creates_the_whole_gang_and_says_so():
    decided = plan(World(3).view())
    assert [(each.name, each.index) for each in of(CreatePod, decided)] == [
        ("job-0-0", 0),
        ("job-0-1", 1),
        ("job-0-2", 2),
    ]
    (write,) = of(WriteStatus, decided)
    assert decided.actions[0] is write
    assert write.urgent
    assert (write.status.state, write.status.reason) == ("Pending", "WaitingForPods")
    assert [each.type for each in write.status.conditions] == list(CONDITION_TYPES)


def test_no_round_opens_before_every_agent_is_ready():
    world = World(2)
    world.settle()
    first, second = list(world.pods)
    world.pods[first] = replace(world.pods[first], phase="Running", started=world.now)
    world.call_in(first)
    world.settle()
    assert world.status.round == 0
    assert "1 of 2 ready" in world.status.message
    world.pods[second] = replace(world.pods[second], phase="Running", started=world.now)
    world.call_in(second)
    world.settle()
    assert world.status.round == 1


@pytest.mark.parametrize("state", ["starting", "running", "stopping", "exiting"])
def test_an_agent_that_is_not_idle_keeps_the_next_round_closed(state):
    world = World(2)
    world.settle()
    world.start_pods()
    uid = world.at(1)
    world.agents[uid] = replace(world.agents[uid], state=state)
    world.settle()
    assert world.status.round == 0
    world.agents[uid] = replace(world.agents[uid], state="ready")
    world.settle()
    assert world.status.round == 1


def test_a_round_is_in_the_status_before_any_agent_is_told():
    world = World(2)
    world.settle()
    world.start_pods()
    decided = world.step()
    (write,) = of(WriteStatus, decided)
    assert decided.actions[0] is write
    assert write.urgent
    assert write.status.rendezvous.members == [world.at(0), world.at(1)]
    assert write.status.start_time == rfc3339(START)
    told = of(CommandAgent, decided)
    leader = world.agents[world.at(0)]
    assert [(each.verb, each.round, each.nodes, each.node_rank) for each in told] == [
        ("run", 1, 2, 0),
        ("run", 1, 2, 1),
    ]
    assert {(each.master_address, each.master_port) for each in told} == {(leader.address, leader.master_port)}


def test_pending_is_explained_by_what_the_cluster_says():
    world = World(1)
    world.settle()
    uid = world.at(0)
    world.pods[uid] = replace(world.pods[uid], reason="Unschedulable", message="0/3 nodes have 8 GPUs")
    world.settle()
    assert world.status.reason == "Unschedulable"
    assert "0/3 nodes have 8 GPUs" in world.status.message


def test_a_restarted_operator_tells_the_same_round_again_word_for_word():
    world = World(2).to_running()
    before = dict(world.commands)
    world.restart_operator()
    decided = world.step()
    assert {each.pod_uid: each for each in of(CommandAgent, decided)} == before
    assert world.status.round == 1


def test_a_running_job_at_rest_needs_nothing():
    world = World(2).to_running()
    assert plan(world.view()).actions == ()


# Ends of a round.


def test_a_failed_worker_stops_everyone_and_the_next_round_opens_in_place():
    world = World(2).to_running()
    pods = dict(world.pods)
    fail(world, 1, rank=1)
    decided = world.step()
    assert [(each.verb, each.round) for each in of(CommandAgent, decided)] == [("stop", 1), ("stop", 1)]
    attempt = world.status.attempts[-1]
    assert attempt.cause.rank == 1
    assert (attempt.reason, attempt.cause.exit_code, attempt.cause.exception) == ("WorkerFailed", 1, "ValueError: boom")
    assert (attempt.cause.pod, attempt.cause.node) == ("job-0-1", "node-1")
    recover(world, 2)
    assert (world.status.state, world.status.round) == ("Running", 2)
    assert {uid: pod.name for uid, pod in world.pods.items()} == {uid: pod.name for uid, pod in pods.items()}


def test_only_the_lost_pod_is_replaced_under_a_new_name():
    world = World(3).to_running()
    world.end_pod(world.at(1), 137, "OOMKilled")
    world.settle()
    assert sorted(pod.name for pod in world.pods.values()) == ["job-0-0", "job-0-2", "job-1-1"]
    assert world.status.attempts[-1].reason == "OOMKilled"
    recover(world, 2)
    assert (world.status.state, world.status.round, world.status.nodes.lost) == ("Running", 2, 1)


def test_a_worker_that_the_kernel_killed_for_lack_of_memory_is_named_so_and_tried_once_more():
    world = World(2).to_running()
    killed = {"rank": 1, "exception": "", "message": "limit 1.0 GiB, peak 1.0 GiB", "out_of_memory": True}
    fail(world, 1, 137, **killed)
    world.step()
    assert (world.status.attempts[-1].reason, world.status.attempts[-1].cause.exit_code) == ("OOMKilled", 137)
    recover(world)
    fail(world, 1, 137, **killed)
    world.settle()
    assert (world.status.state, world.status.reason) == ("Failed", "OOMKilled")
    assert "limit 1.0 GiB, peak 1.0 GiB" in world.status.message


def test_a_pod_that_was_told_to_go_is_the_cause_not_one_that_saved_along_with_it():
    world = World(2).to_running()
    fail(world, 0, 75, rank=0, exception="", message="exit code 75")
    world.step()
    world.now += 0.1
    world.end_workers(world.at(1), 75, asked=True, saved=True)
    world.step()
    attempt = world.status.attempts[-1]
    assert (attempt.reason, attempt.cause.rank, attempt.cause.pod, attempt.counted) == (
        "Preempted",
        1,
        "job-0-1",
        False,
    )


def test_a_pod_that_is_lost_stands_for_the_first_of_its_ranks():
    world = World(3, procs_per_node=4).to_running()
    world.end_pod(world.at(1), 137, "OOMKilled")
    world.settle()
    cause = world.status.attempts[-1].cause
    assert (cause.rank, cause.pod, cause.node) == (4, "job-0-1", "node-1")
    assert "rank 4, pod job-0-1, node node-1, exit code 137" in world.status.message


def test_the_incarnation_is_persisted_before_the_replacement_is_created():
    world = World(2).to_running()
    world.vanish(world.at(1))
    decided = world.step()
    kinds = [type(action) for action in decided.actions]
    assert kinds.index(WriteStatus) < kinds.index(CreatePod)
    assert of(WriteStatus, decided)[0].status.incarnation == of(CreatePod, decided)[0].incarnation == 1


def test_a_replacement_waits_until_the_old_pod_is_gone():
    world = World(2).to_running()
    uid = world.at(1)
    world.delete(uid)
    world.agents[uid] = replace(world.agents[uid], connected=False)
    world.settle()
    assert [pod.name for pod in world.pods.values() if pod.index == 1] == ["job-0-1"]
    world.finish_deletions()
    world.settle()
    assert [pod.name for pod in world.pods.values() if pod.index == 1] == ["job-1-1"]


def test_the_first_cause_is_the_earliest_failure_that_is_nobody_elses_consequence():
    world = World(3).to_running()
    fail(world, 0, 76, exception="PeerLost", secondary=True)
    world.now += 1
    fail(world, 2, 139, exception="", message="")
    world.settle()
    assert world.status.attempts[0].cause.pod == "job-0-2"
    assert world.status.attempts[0].reason == "SegmentationFault"


def test_a_consequence_that_is_reported_first_waits_for_its_cause_but_not_for_ever():
    world = World(2).to_running()
    fail(world, 0, 76, secondary=True)
    decided = world.step()
    assert world.status.rendezvous.open
    assert decided.requeue_after is not None
    assert decided.requeue_after <= 2
    world.now += 2
    world.settle()
    assert world.status.attempts[0].reason == "PeerLost"


def test_silence_alone_is_no_death():
    world = World(2).to_running()
    uid = world.at(1)
    world.agents[uid] = replace(world.agents[uid], connected=False)
    world.now += 7200
    world.settle()
    assert (world.status.state, world.status.round) == ("Running", 1)


def test_a_node_and_an_agent_that_are_both_silent_are_lost():
    world = World(2).to_running()
    uid = world.at(1)
    world.agents[uid] = replace(world.agents[uid], connected=False)
    world.pods[uid] = replace(world.pods[uid], phase="Unknown")
    world.now += 61
    world.settle()
    assert world.status.attempts[0].reason == "NodeLost"
    assert world.status.restarts.counted == 0
    world.finish_deletions()
    assert recover(world, 3).status.state == "Running"


def test_an_agent_that_restarted_does_not_rejoin_its_old_round():
    world = World(2).to_running()
    uid = world.at(1)
    world.commands.pop(uid)  # the book drops it with the instance
    world.call_in(uid)
    world.settle()
    assert world.status.attempts[0].reason == "AgentRestarted"
    assert world.status.round == 2


# The budget.


def test_a_round_that_advanced_the_checkpoint_costs_nothing():
    world = World(1, restart=Restart(max_restarts=0, no_progress_limit=1)).to_running()
    for _ in range(12):
        world.advance_training(3, save=True)
        world.settle()
        fail(world, message=f"at {world.checkpoint}")
        world.settle()
        assert world.status.rendezvous.next_round_time is None
        recover(world, 1)
    assert world.status.state == "Running"
    assert (world.status.restarts.total, world.status.restarts.counted) == (12, 0)
    assert len(world.status.attempts) == 10


def test_rounds_in_a_row_without_progress_end_the_job():
    world = World(1, restart=Restart(no_progress_limit=3)).to_running()
    world.advance_training(3, save=True)
    world.settle()
    for number in range(4):
        fail(world, message=f"boom {number}")
        recover(world, 1)
    assert (world.status.state, world.status.reason) == ("Failed", "NoProgress")
    assert "ValueError: boom 3" in world.status.message
    assert world.status.attempts[-1].cause.exception == "ValueError: boom 3"
    assert condition(world, "Failed").status == "True"


def test_max_restarts_counts_only_rounds_without_progress():
    world = World(1, restart=Restart(max_restarts=1, no_progress_limit=9)).to_running()
    for number in range(3):
        fail(world, message=f"boom {number}")
        recover(world, 1)
    assert (world.status.state, world.status.reason) == ("Failed", "MaxRestartsExceeded")
    assert world.status.restarts.counted == 2


def test_the_same_error_at_the_same_step_twice_fails_fast():
    world = World(1, restart=Restart(no_progress_limit=100)).to_running()
    world.advance_training(6)
    fail(world, step=7)
    recover(world, 7)
    fail(world, step=7)
    world.settle()
    assert (world.status.state, world.status.reason) == ("Failed", "RepeatedFailure")


def test_a_kill_at_the_same_step_twice_is_no_evidence_against_the_code():
    world = World(1, restart=Restart(no_progress_limit=100)).to_running()
    for _ in range(2):
        fail(world, 0, 137, exception="", message="")
        recover(world, 1)
    assert world.status.state == "Running"


@pytest.mark.parametrize("code", [64, 65, 66, 67, 126, 127])
def test_a_permanent_exit_code_fails_at_once_with_the_workers_words(code):
    world = World(2).to_running()
    fail(world, 0, code, exception="ConfigError", message="params.steps must be at least 1")
    world.settle()
    assert world.status.state == "Failed"
    assert "params.steps must be at least 1" in world.status.message
    assert world.status.round == 1


def test_policy_never_ends_the_job_at_the_first_failure():
    world = World(1, restart=Restart(policy="Never")).to_running()
    fail(world)
    world.settle()
    assert (world.status.state, world.status.reason) == ("Failed", "RestartsDisabled")


def test_running_out_of_gpu_memory_twice_without_progress_ends_the_job():
    world = World(1).to_running()
    fail(world, 0, 69)
    recover(world, 1)
    fail(world, 0, 69)
    world.settle()
    assert (world.status.state, world.status.reason) == ("Failed", "GpuOutOfMemory")


def out_of_memory(world, next_micro_batch):
    fail(world, 0, 69, next_micro_batch=next_micro_batch)


def micro_batches(world):
    return [each.env.get("TORCHYARD_MICRO_BATCH") for each in world.commands.values() if each.verb == "run"]


def test_a_gpu_that_ran_out_of_memory_is_tried_with_ever_smaller_micro_batches_free_of_charge():
    world = World(2, restart=Restart(max_restarts=0, no_progress_limit=1)).to_running()
    assert micro_batches(world) == [None, None]
    for smaller in (32, 16, 8, 4):
        out_of_memory(world, smaller)
        (write,) = of(WriteStatus, world.step())
        assert write.urgent
        assert write.status.rendezvous.micro_batch == smaller, "persisted before anybody is told"
        assert f"going on with micro-batches of {smaller}" in write.status.message
        recover(world, 1)
        assert micro_batches(world) == [str(smaller)] * 2
    assert world.status.state == "Running"
    assert (world.status.restarts.total, world.status.restarts.counted) == (4, 0)


def test_a_learned_micro_batch_stays_for_later_rounds_and_survives_the_operator():
    world = World(1).to_running()
    out_of_memory(world, 8)
    recover(world, 1)
    fail(world)
    recover(world, 1)
    assert micro_batches(world) == ["8"]
    world.restart_operator()
    world.settle()
    assert micro_batches(world) == ["8"]


def test_when_no_smaller_micro_batch_exists_running_out_of_memory_ends_the_job():
    world = World(1).to_running()
    out_of_memory(world, 1)
    recover(world, 1)
    out_of_memory(world, 0)
    world.settle()
    assert (world.status.state, world.status.reason) == ("Failed", "GpuOutOfMemory")
    assert world.status.round == 2


def test_running_out_of_memory_after_progress_is_paid_for_by_it():
    world = World(1).to_running()
    world.advance_training(50, save=True)
    world.settle()
    out_of_memory(world, 0)
    recover(world, 1)
    assert world.status.state == "Running"


@pytest.mark.parametrize("next_micro_batch", [8, 5, -2])
def test_a_micro_batch_that_is_not_halved_is_an_ordinary_failure(next_micro_batch):
    world = World(1).to_running()
    out_of_memory(world, 8)
    recover(world, 1)
    out_of_memory(world, next_micro_batch)
    world.settle()
    assert (world.status.state, world.status.reason) == ("Failed", "GpuOutOfMemory")


def test_only_exit_code_69_teaches_a_micro_batch():
    world = World(1).to_running()
    fail(world, 0, 1, next_micro_batch=8)
    recover(world, 1)
    assert micro_batches(world) == [None]


@pytest.mark.parametrize("how", ["preempted", "evicted", "vanished"])
def test_what_no_code_is_to_blame_for_is_not_counted(how):
    world = World(1, restart=Restart(max_restarts=0, no_progress_limit=1)).to_running()
    for _ in range(5):
        if how == "preempted":
            fail(world, 0, 75)
        elif how == "evicted":
            world.end_pod(world.at(0), 137, "Evicted")
        else:
            world.vanish(world.at(0))
        recover(world, 1)
    assert world.status.state == "Running"
    assert (world.status.restarts.total, world.status.restarts.counted) == (5, 0)


def test_the_delay_doubles_up_to_its_limit_and_holds_the_round_back():
    backoff = Backoff(initial="10s", max="25s")
    world = World(1, restart=Restart(no_progress_limit=100, backoff=backoff)).to_running()
    fail(world, message="first")  # step 1 is progress
    recover(world, 1)
    delays = []
    for number in range(3):
        fail(world, message=f"boom {number}")
        world.settle()
        delays.append(plan(world.view()).requeue_after)
        assert world.status.rendezvous.open is False
        recover(world, 1)
    assert delays == [10, 20, 25]


def test_a_pod_that_dies_before_any_round_is_charged_once_and_ends_the_job_in_the_end():
    world = World(1, restart=Restart(no_progress_limit=3))
    for _ in range(3):
        world.settle()
        world.start_pods()
        world.end_pod(world.at(0), 1)
        world.settle()
        world.now += 400
    assert (world.status.state, world.status.reason) == ("Failed", "NoProgress")
    assert world.status.restarts.total == 3


def test_a_command_that_does_not_exist_fails_before_any_round():
    world = World(1)
    world.settle()
    world.end_pod(world.at(0), 127)
    world.settle()
    assert (world.status.state, world.status.reason) == ("Failed", "CommandNotFound")


# The end.


def test_success_needs_every_member():
    world = World(2).to_running()
    world.end_workers(world.at(0), 0)
    world.settle()
    assert world.status.state == "Running"
    world.end_workers(world.at(1), 0)
    decided = world.step()
    assert (world.status.state, world.status.completion_time) == ("Succeeded", rfc3339(world.now))
    assert [(each.verb, each.code) for each in of(CommandAgent, decided)] == [("exit", 0), ("exit", 0)]
    assert condition(world, "Complete").status == "True"


def test_completion_is_seen_without_the_agents():
    world = World(2).to_running()
    for index in (0, 1):
        world.end_pod(world.at(index), 0)
    world.restart_operator()
    world.settle()
    assert world.status.state == "Succeeded"


def test_pods_of_a_finished_job_that_do_not_go_are_deleted():
    world = World(1).to_running()
    uid = world.at(0)
    world.end_workers(uid, 0)
    world.settle()
    world.pods[uid] = replace(world.pods[uid], phase="Running")  # it did not obey
    assert of(DeletePod, plan(world.view())) == []
    world.now += 31
    assert [each.uid for each in of(DeletePod, plan(world.view()))] == [uid]


def test_a_finished_job_is_deleted_after_its_ttl_and_not_before():
    world = World(1, ttl_after_finished="1h").to_running()
    world.end_workers(world.at(0), 0)
    world.settle()
    world.now += 3599
    assert plan(world.view()).requeue_after == 1
    world.now += 1
    assert plan(world.view()).actions == (DeleteJob(uid="job-uid"),)


def test_a_deleted_job_is_left_alone():
    world = World(2).to_running()
    world.vanish(world.at(1))
    world.job = replace(world.job, metadata=replace(world.job.metadata, deletion_timestamp=rfc3339(world.now)))
    assert plan(world.view()).actions == ()


# Suspend, deadline, time-outs.


def test_suspend_saves_first_then_gives_every_pod_up_and_resume_goes_on():
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


def test_a_resume_after_a_failure_is_no_recovery():
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
    world = World(1, grace_period="30s").to_running()
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
    assert not world.status.rendezvous.open, "nobody runs: there is no grace period to wait out"
    world.finish_deletions()
    world.settle()
    assert (world.status.state, world.status.restarts.total) == ("Suspended", 0)


def test_without_on_preempt_a_suspend_just_stops():
    world = World(1, checkpoint=Checkpoint(on_preempt=False)).to_running()
    world.edit(suspend=True)
    assert of(CommandAgent, world.step())[0].verb == "stop"


def test_a_job_submitted_suspended_creates_nothing():
    world = World(2, suspend=True)
    world.settle()
    assert (world.status.state, world.created) == ("Suspended", [])


def test_the_deadline_counts_from_the_first_start_across_suspends():
    world = World(1, active_deadline="1h").to_running()
    assert plan(world.view()).requeue_after == 3599
    world.edit(suspend=True)
    world.settle()
    world.now = START + 3600
    world.settle()
    assert (world.status.state, world.status.reason) == ("Failed", "DeadlineExceeded")


def test_a_trainer_without_a_first_step_in_time_gets_another_round_then_fails():
    world = World(
        1, trainer=Trainer(name="cvrp"), health=Health(start_timeout="5m"), restart=Restart(no_progress_limit=2)
    )
    world.settle()
    world.start_pods()
    world.settle()
    assert plan(world.view()).requeue_after == pytest.approx(300, abs=1) or plan(world.view()).requeue_after <= 30
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


def test_an_agent_that_never_gets_ready_ends_the_job_as_one_that_never_calls_does():
    world = World(2, health=Health(start_timeout="5m"))
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


def test_an_agent_that_is_started_anew_has_the_whole_time_to_get_ready():
    world = World(2, health=Health(start_timeout="5m")).to_running()
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
    world = World(1, trainer=Trainer(name="cvrp"), health=Health(start_timeout="5m"))
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


def test_pods_that_are_never_placed_end_the_job_if_the_user_said_so():
    world = World(1, health=Health(pending_timeout="10m"))
    world.settle()
    assert plan(world.view()).requeue_after == 600
    world.now += 600
    world.settle()
    assert (world.status.state, world.status.reason) == ("Failed", "PendingTimeout")
    assert world.pods == {}


# The status.


def test_progress_rate_and_time_left_are_what_the_ranks_report():
    world = World(2).to_running()
    world.advance_training(19, total=100)
    world.settle()
    progress = world.status.progress
    assert (progress.step, progress.total_steps, progress.percent, progress.eta_seconds) == (20, 100, 20.0, 40)
    assert world.status.throughput.steps_per_second == 2.0
    assert world.status.metrics == {"loss": pytest.approx(1 / 21)}


def test_a_program_that_reports_no_rate_gets_the_average_of_its_round():
    world = World(1).to_running()
    opened = world.status.attempts[-1].start_time
    world.now = unix(opened) + 10
    uid = world.at(0)
    world.agents[uid] = replace(
        world.agents[uid], reports=(RankReport(round=1, step=30, phase="step", time=world.now),)
    )
    world.settle()
    assert world.status.throughput.steps_per_second == 3.0


def test_figures_alone_are_not_urgent_and_tell_no_events():
    world = World(1).to_running()
    world.advance_training(5)
    decided = plan(world.view())
    assert [type(action) for action in decided.actions] == [WriteStatus]
    assert not decided.actions[0].urgent


def test_hostile_figures_never_reach_the_status():
    world = World(1).to_running()
    uid = world.at(0)
    told = RankReport(
        round=1,
        step=3,
        total_steps=-5,
        epoch=float("nan"),
        phase="step",
        time=float("inf"),
        metrics={f"m{number}": float(number) for number in range(90)} | {"a": float("nan"), "b": float("inf")},
        throughput={"stepsPerSecond": float("nan"), "mfu": -1.0},
        checkpoint={"step": "many", "path": 7, "time": "never"},
    )
    world.agents[uid] = replace(world.agents[uid], reports=(told,))
    world.settle()
    status = world.status
    assert len(status.metrics) == 32
    assert not {"a", "b"} & set(status.metrics)
    assert (status.progress.total_steps, status.progress.epoch) == (None, None)
    assert status.throughput.steps_per_second is None
    assert status.checkpoint is None


def test_the_checkpoint_tells_how_many_steps_are_at_risk():
    world = World(1).to_running()
    world.advance_training(9, save=True)
    world.settle()
    world.advance_training(4)
    world.settle()
    assert (world.status.checkpoint.step, world.status.checkpoint.steps_at_risk) == (10, 4)


def test_gpus_that_two_pods_share_are_counted_once():
    world = World(2).to_running()
    card = GpuReport(uuid="GPU-1", memory_total_bytes=80, memory_used_bytes=20, utilization=50.0, power_w=300.0)
    for uid in list(world.agents):
        world.agents[uid] = replace(world.agents[uid], gpus=(card,))
    world.settle()
    gpus = world.status.gpus
    assert (gpus.count, gpus.memory_total_bytes, gpus.utilization, gpus.power_w) == (1, 80, 50.0, 300.0)


def test_all_wall_time_is_attributed_and_repeated_steps_are_lost():
    world = World(1, gpus_per_node=2).to_running()
    for _ in range(3):
        world.now += 20
        world.advance_training(10, save=True)
        world.settle()
    world.now += 20
    world.advance_training(10)
    world.settle()
    fail(world)
    world.settle()
    recover(world, 1)
    for uid in list(world.training):
        world.end_workers(uid, 0)
    world.settle()
    seconds = world.status.goodput.seconds
    assert sum(seconds.values()) == pytest.approx(world.now - START, abs=1)
    assert seconds["lost"] == pytest.approx(5, abs=1), "10 steps at 2 a second"
    assert seconds["recover"] == pytest.approx(400, abs=2)
    assert world.status.goodput.percent == pytest.approx(100 * seconds["productive"] / sum(seconds.values()), abs=0.1)
    assert world.status.gpu_seconds == pytest.approx(2 * (world.now - START), abs=4)


def test_one_event_a_transition():
    world = World(2).to_running()
    for uid in list(world.training):
        world.end_workers(uid, 0)
    world.settle()
    assert [event.reason for event in world.events] == ["RoundOpened", "Training", "Completed"]


def test_the_failure_is_announced_as_a_warning_with_its_evidence():
    world = World(1).to_running()
    fail(world, rank=0)
    world.settle()
    (event,) = [each for each in world.events if each.type == "Warning"]
    assert isinstance(event, EmitEvent)
    assert event.reason == "WorkerFailed"
    assert "ValueError: boom" in event.message


def test_a_smaller_gang_begins_with_the_next_round():
    world = World(3).to_running()
    world.edit(nodes=2)
    world.settle()
    assert (world.status.round, len(world.training)) == (1, 3)
    fail(world, 0)
    world.settle()
    world.finish_deletions()
    recover(world, 2)
    assert (world.status.state, len(world.training), world.status.nodes.desired) == ("Running", 2, 2)


def test_a_former_member_that_is_still_there_keeps_the_next_round_closed():
    world = World(2).to_running()
    world.edit(nodes=1)
    fail(world, 0)
    world.settle()
    assert (world.status.round, world.status.rendezvous.open) == (1, False)
    world.finish_deletions()
    world.settle()
    assert (world.status.round, len(world.training)) == (2, 1)


def test_the_defaults_of_the_spec_are_a_valid_job():
    assert plan(replace(World(1).view(), job=replace(World(1).job, spec=TrainingJobSpec()))).actions
