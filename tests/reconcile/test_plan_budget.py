"""What a round costs, and when a job has used up its restarts."""

import pytest
from tests.support.reconcile.scenarios import condition, fail, of, recover
from tests.support.reconcile.world import World

from torchyard.api.spec_reliability import Backoff, Restart
from torchyard.api.values import Duration
from torchyard.reconcile.actions import WriteStatus
from torchyard.reconcile.plan import plan


def test_a_round_that_advanced_the_checkpoint_costs_nothing():
    world = World(1, restart=Restart(max_restarts=1, no_progress_limit=1)).to_running()
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
    assert "(3 rounds, no newer step reported, last cause WorkerFailed, " in world.status.message
    assert "ValueError: boom 3" in world.status.message
    assert world.status.attempts[-1].cause.exception == "ValueError: boom 3"
    assert condition(world, "Failed").status == "True"


def test_max_restarts_counts_only_rounds_without_progress():
    world = World(1, restart=Restart(max_restarts=1, no_progress_limit=9)).to_running()
    for number in range(3):
        fail(world, message=f"boom {number}")
        recover(world, 1)
    assert (world.status.state, world.status.reason) == ("Failed", "MaxRestartsExceeded")
    assert (world.status.restarts.total, world.status.restarts.counted) == (2, 2), "the last failure restarts nothing"
    assert "maxRestarts 1, last cause WorkerFailed" in world.status.message


def test_no_restarts_means_none_even_after_progress():
    world = World(1, restart=Restart(max_restarts=0)).to_running()
    world.advance_training(3, save=True)
    fail(world)
    recover(world, 1)
    assert (world.status.state, world.status.reason, world.status.round) == ("Failed", "MaxRestartsExceeded", 1)
    assert world.status.restarts.total == 0


def test_one_failure_and_then_success_is_one_restart():
    world = World(2).to_running()
    fail(world)
    recover(world, 1)
    for index in (0, 1):
        world.end_workers(world.at(index), 0)
    world.settle()
    assert (world.status.state, world.status.round, world.status.restarts.total) == ("Succeeded", 2, 1)


def test_a_suspend_is_not_counted_as_a_restart():
    world = World(1).to_running()
    world.edit(suspend=True)
    world.settle()
    world.finish_deletions()
    world.settle()
    world.edit(suspend=False)
    recover(world, 1)
    assert (world.status.round, world.status.restarts.total) == (2, 0)


def test_the_end_of_a_budget_keeps_the_advice_of_the_last_cause():
    world = World(1, restart=Restart(no_progress_limit=1)).to_running()
    for _ in range(2):
        fail(world, 0, 74, exception="OSError", message="No space left on device")
        recover(world, 1)
    assert world.status.reason == "NoProgress"
    assert world.status.message.endswith("; check free space and health of the checkpoint volume")


def test_the_same_error_at_the_same_step_twice_fails_fast():
    world = World(1, restart=Restart(no_progress_limit=100)).to_running()
    world.advance_training(6)
    fail(world, step=7)
    recover(world, 7)
    fail(world, step=7)
    world.settle()
    assert (world.status.state, world.status.reason) == ("Failed", "RepeatedFailure")


def test_a_bare_exit_code_twice_need_not_be_the_same_error():
    world = World(1, restart=Restart(no_progress_limit=2)).to_running()
    for tries in (1, 2):
        fail(world, exception="", exit_code_only=True, message="exit code 1")
        world.settle()
        assert world.status.state == "Recovering", tries
        recover(world)
    fail(world, exception="", exit_code_only=True, message="exit code 1")
    world.settle()
    assert (world.status.state, world.status.reason) == ("Failed", "NoProgress")


def test_a_kill_at_the_same_step_twice_does_not_count_against_the_program():
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


OWN_CODES = [*range(64, 77), 193, 200, 255]


@pytest.mark.parametrize("code", OWN_CODES)
def test_a_code_of_a_programs_own_is_an_ordinary_failure(code):
    """Only a trainer of ours, the agent or a failure file gives 64 to 76, 126 and 127 the meaning of our table."""
    world = World(2, restart=Restart(no_progress_limit=3)).to_running()
    for _ in range(4):  # the first round has made a step
        own_code(world, code)
        recover(world)
    assert (world.status.state, world.status.reason) == ("Failed", "NoProgress")
    assert world.status.attempts[-1].cause.class_ == "WorkerFailed"
    assert f"exit code {code}" in world.status.message
    assert (world.status.round, world.status.restarts.no_progress) == (4, 3)


def own_code(world, code, index=0):
    message = f"exit code {code}"
    fail(world, index, code, exception="", exit_code_only=True, message=message, rank=index, classified=False)


@pytest.mark.parametrize("code", [126, 127])
def test_a_command_that_a_shell_cannot_start_ends_the_job_when_that_repeats(code):
    """Other exit codes may have another cause each time."""
    world = World(1, restart=Restart(no_progress_limit=5)).to_running()
    for _ in range(2):  # the first round has made a step
        own_code(world, code)
        recover(world)
    own_code(world, code)
    world.settle()
    assert (world.status.state, world.status.reason) == ("Failed", "RepeatedFailure")


@pytest.mark.parametrize("how", ["the other pod was asked", "the other pod is being deleted"])
def test_a_programs_75_is_a_save_where_its_gang_was_asked(how):
    world = World(2, restart=Restart(max_restarts=1)).to_running()
    fail(world)
    recover(world)
    counted, other = world.status.restarts.counted, world.at(1)
    if how == "the other pod was asked":
        world.end_workers(other, 143, asked=True)
    else:
        world.delete(other, forced=False)
    own_code(world, 75)
    world.settle()
    world.finish_deletions()
    recover(world)
    assert (world.status.round, world.status.restarts.counted) == (3, counted)
    assert world.status.attempts[-2].cause.class_ in {"Preempted", "PodLost"}


def test_a_programs_76_is_not_the_loss_of_a_peer():
    world = World(2).to_running()
    own_code(world, 76, index=1)
    world.now += 1
    fail(world, 0, 1)
    world.settle()
    causes = [each.cause for each in world.status.attempts if each.cause is not None]
    assert [cause.exit_code for cause in causes] == [76]


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
        assert write.status.rendezvous.micro_batch == smaller, "persisted before any agent gets it"
        assert f"continuing with micro-batches of {smaller}" in write.status.message
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
    backoff = Backoff(initial=Duration("10s"), max=Duration("25s"))
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
    assert (world.status.restarts.total, world.status.restarts.counted) == (0, 3)


def test_a_pod_that_fills_its_own_volume_each_time_ends_the_job():
    world = World(1, restart=Restart(no_progress_limit=2)).to_running()
    for _ in range(3):
        world.end_pod(world.at(0), 143, "DiskLimitExceeded")
        recover(world, 1)
    assert (world.status.state, world.status.reason) == ("Failed", "NoProgress")
    assert "last cause DiskLimitExceeded" in world.status.message


def test_a_node_that_refuses_pods_costs_nothing_and_is_not_asked_again_at_once():
    """The first time may be the second blow of one fault, which is soon over."""
    world = World(1)
    world.settle()
    for pause in (2, 30, 30, 30, 30):
        world.end_pod(world.at(0), None, "NodeRefused")
        world.settle()
        assert (world.status.state, world.status.reason) == ("Recovering", "NodeRefused")
        made = len(world.created)
        world.now += pause - 1
        world.settle()
        assert len(world.created) == made
        world.now += 2  # times in a status are whole seconds
        world.settle()
        assert len(world.created) == made + 1
    assert (world.status.restarts.total, world.status.restarts.counted) == (0, 0)


def test_a_command_that_does_not_exist_fails_before_any_round():
    world = World(1)
    world.settle()
    world.end_pod(world.at(0), 127)
    world.settle()
    assert (world.status.state, world.status.reason) == ("Failed", "CommandNotFound")
