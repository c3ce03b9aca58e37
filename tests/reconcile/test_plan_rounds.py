"""What ends a round, what its first cause is, and what the next one needs."""

import pytest
from msgspec.structs import replace
from tests.support.reconcile.scenarios import fail, of, recover
from tests.support.reconcile.world import World

from torchyard.reconcile.actions import CommandAgent, CreatePod, WriteStatus


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


@pytest.mark.parametrize("reported", [False, True], ids=["without a report", "whose workers reported a SIGTERM"])
def test_a_round_waits_for_the_answer_about_a_pod_that_vanished_and_then_names_the_cause(reported):
    world = World(2).to_running()
    uid = world.at(1)
    if reported:
        world.end_workers(uid, 143, asked=True)
    else:
        del world.agents[uid]
    world.pods[uid] = replace(world.pods[uid], deleting=True, unconfirmed=True)
    assert not of(CreatePod, world.step()), "its containers may run"
    assert (world.status.state, world.status.attempts[-1].end_time) == ("Running", None)
    why = "its label was removed"
    world.pods[uid] = replace(world.pods[uid], unconfirmed=False, reason="PodLost", message=why)
    assert not of(CreatePod, world.step())
    assert (world.status.attempts[-1].reason, world.status.attempts[-1].cause.exception) == ("PodLost", why)
    world.vanish(uid)
    assert [each.name for each in of(CreatePod, world.step())] == ["job-1-1"]


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


def test_a_pod_that_outlived_a_lack_of_memory_is_not_blamed_for_it_again():
    world = World(2).to_running()
    fail(world, 1, 137, rank=1, exception="", message="limit 1.0 GiB, peak 1.0 GiB", out_of_memory=True)
    world.step()
    recover(world)
    world.end_pod(world.at(1), 137, "OOMKilled")  # as a kubelet calls every later end of that container
    world.settle()
    attempt = world.status.attempts[-1]
    assert (attempt.reason, attempt.cause.exit_code) == ("PodFailed", 137)
    assert "because of an earlier round" in attempt.cause.exception
    recover(world, 3)
    world.end_pod(world.at(1), 137, "OOMKilled")  # the new pod's own
    world.settle()
    assert world.status.attempts[-1].reason == "OOMKilled"


def test_a_pod_that_was_asked_to_stop_is_the_cause_not_one_that_saved_along_with_it():
    world = World(2).to_running()
    fail(world, 0, 75, rank=0, exception="", exit_code_only=True, message="exit code 75")
    world.step()
    world.now += 0.1
    told = world.at(1)
    world.delete(told)
    world.end_workers(told, 75, asked=True, saved=True)
    world.step()
    attempt = world.status.attempts[-1]
    assert (attempt.reason, attempt.cause.rank, attempt.cause.pod, attempt.counted) == (
        "Preempted",
        1,
        "job-0-1",
        False,
    )
    assert attempt.cause.exception == "they saved first"


OWN_FAULT = 'Usage of EmptyDir volume "torchyard-checkpoints" exceeds the limit "10Mi".'


def test_why_a_pod_was_asked_to_stop_may_be_known_a_moment_later():
    world = World(2).to_running()
    world.end_workers(world.at(1), 143, asked=True)
    world.step()
    assert world.status.rendezvous.open, "no agent said why yet"
    world.now += 1
    world.end_workers(world.at(0), 76, secondary=True)
    world.step()
    assert world.status.rendezvous.open
    evicted = world.at(1)
    agent = world.agents[evicted]
    world.end_pod(evicted, 143, "DiskLimitExceeded")
    world.agents[evicted] = agent  # what it said stays known
    world.pods[evicted] = replace(world.pods[evicted], message=OWN_FAULT)
    world.step()
    attempt = world.status.attempts[-1]
    assert (attempt.reason, attempt.cause.pod) == ("DiskLimitExceeded", "job-0-1")
    assert OWN_FAULT in world.status.message


def test_a_member_whose_pod_is_deleted_is_the_cause_at_once_whatever_its_peers_do():
    world = World(2).to_running()
    deleted = world.at(1)
    world.delete(deleted)
    world.end_workers(deleted, 143, asked=True)
    world.step()
    attempt = world.status.attempts[-1]
    assert not world.status.rendezvous.open
    assert (attempt.reason, attempt.cause.pod, attempt.cause.node) == ("Preempted", "job-0-1", "node-1")


def test_a_pod_that_was_asked_to_stop_for_an_unknown_reason_is_not_waited_for_long():
    world = World(1).to_running()
    world.end_workers(world.at(0), 143, asked=True)
    assert world.step().requeue_after == 2
    world.now += 2
    world.settle()
    attempt = world.status.attempts[0]
    assert (attempt.reason, attempt.cause.exception, attempt.counted) == ("Preempted", "they had not saved", False)


def test_a_lost_pod_is_reported_as_its_first_rank():
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


def test_a_pod_on_a_node_that_is_not_ready_is_replaced_only_after_it_had_time_to_call():
    world = World(1)
    world.settle()
    for made in range(1, 4):
        world.now += 3600
        uid = world.at(0)
        world.pods[uid] = replace(world.pods[uid], phase="Unknown", created=world.now)
        world.settle()
        assert "its node node-0 is not ready" in world.status.message
        world.now += 19
        world.settle()
        assert len(world.created) == made
        world.now += 2
        world.settle()
        assert len(world.created) == made + 1


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


def test_the_first_cause_is_the_earliest_failure_that_no_other_explains():
    world = World(3).to_running()
    fail(world, 0, 76, exception="PeerLost", secondary=True)
    world.now += 1
    fail(world, 2, 139, exception="", message="")
    world.settle()
    assert world.status.attempts[0].cause.pod == "job-0-2"
    assert world.status.attempts[0].reason == "SegmentationFault"


def test_a_consequence_that_is_reported_first_waits_for_its_cause_but_not_forever():
    world = World(2).to_running()
    fail(world, 0, 76, secondary=True)
    decided = world.step()
    assert world.status.rendezvous.open
    assert decided.requeue_after is not None
    assert decided.requeue_after <= 2
    world.now += 2
    world.settle()
    assert world.status.attempts[0].reason == "PeerLost"


def test_a_new_operator_waits_for_the_member_that_failed_first_to_call():
    world = World(2).to_running()
    fail(world, 0, 76, exception="PeerLost", secondary=True)
    fail(world, 1, 137, exception="", message="", rank=1)
    killed = world.agents.pop(world.at(1))
    world.restart_operator()
    world.step()
    world.now += 8
    decided = world.step()
    assert world.status.rendezvous.open
    assert decided.requeue_after is not None
    assert decided.requeue_after <= 4
    world.agents[killed.pod_uid] = killed
    world.settle()
    assert (world.status.attempts[0].reason, world.status.attempts[0].cause.rank) == ("Killed", 1)


def test_a_new_operator_does_not_wait_forever_for_a_member_to_call():
    world = World(2).to_running()
    fail(world, 0, 76, secondary=True)
    world.agents.pop(world.at(1))
    world.restart_operator()
    world.step()
    world.now += 12
    world.step()
    assert world.status.attempts[0].reason == "PeerLost"


def test_silence_alone_does_not_mean_a_lost_pod():
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
    world.commands.pop(uid)  # the registry drops it with the instance
    world.call_in(uid)
    world.settle()
    assert world.status.attempts[0].reason == "AgentRestarted"
    assert world.status.round == 2


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
