"""What the plan decides until the first round opens."""

import pytest
from msgspec.structs import replace
from tests.support.reconcile.scenarios import of
from tests.support.reconcile.world import START, World

from torchyard.api.reasons import Reason
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.spec_workload import Trainer
from torchyard.api.status import CONDITION_TYPES, TrainingJobStatus
from torchyard.api.values import Time
from torchyard.reconcile.actions import CommandAgent, CreatePod, WriteStatus
from torchyard.reconcile.observed import Refusal
from torchyard.reconcile.plan import plan


def test_the_first_plan_creates_the_whole_gang_and_records_it():
    decided = plan(World(3).view())
    assert [(each.name, each.index) for each in of(CreatePod, decided)] == [
        ("job-0-0", 0),
        ("job-0-1", 1),
        ("job-0-2", 2),
    ]
    (write,) = of(WriteStatus, decided)
    assert write.urgent
    assert (write.status.state, write.status.reason) == ("Pending", "WaitingForPods")
    assert [each.type for each in write.status.conditions] == list(CONDITION_TYPES)


def test_the_gang_of_a_job_that_was_just_created_does_not_wait_for_a_status():
    decided = plan(World(2).view())
    assert decided.pods_first
    assert [type(each) for each in decided.actions] == [CreatePod, CreatePod, WriteStatus]


def test_nor_does_one_that_was_made_in_this_operators_time_and_waited_long_for_its_turn():
    world = World(2)
    world.now += 60
    assert plan(replace(world.view(), term=START - 60)).pods_first


def test_a_clock_that_was_set_back_makes_no_first_status_wait():
    world = World(2)
    (write,) = of(WriteStatus, plan(world.view()))
    assert write.yields_until == START + 30
    (write,) = of(WriteStatus, plan(replace(world.view(), since=START + 3600)))
    assert write.yields_until <= START


def created_a_minute_ago(world):
    world.now += 60


def refused_just_now(world):
    world.refusal = Refusal(reason=Reason("QuotaExceeded"), since=world.now, until=world.now)


def robbed_of_its_status(world):
    """A pod of it has ended: the next one gets a name that an empty status does not stand for."""
    world.settle()
    world.start_pods()
    world.end_pod(world.at(0), 1, "Evicted")
    world.job = replace(world.job, status=TrainingJobStatus())


@pytest.mark.parametrize("otherwise", [created_a_minute_ago, refused_just_now, robbed_of_its_status])
def test_any_other_gang_waits_until_its_status_is_written(otherwise):
    world = World(2)
    otherwise(world)
    decided = plan(world.view())
    assert not decided.pods_first
    assert isinstance(decided.actions[0], WriteStatus)


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


def test_an_agent_that_may_have_begun_the_last_round_keeps_the_next_one_closed():
    """It has received `run`, its peer failed at once, and its report is from before."""
    world = World(2).to_running()
    uid = world.at(0)
    world.end_workers(world.at(1), 137)
    world.agents[uid] = replace(world.agents[uid], state="ready", round=0, reports=(), current=False)
    for _ in range(3):
        world.step()
        world.now += 60
    assert (world.status.round, world.status.rendezvous.open) == (1, False)
    world.agents[uid] = replace(world.agents[uid], round=1, current=True)
    world.settle()
    assert world.status.round == 2


def test_a_round_is_in_the_status_before_any_agent_gets_it():
    world = World(2)
    world.settle()
    world.start_pods()
    decided = world.step()
    (write,) = of(WriteStatus, decided)
    assert decided.actions[0] is write
    assert write.urgent
    assert write.status.rendezvous.members == [world.at(0), world.at(1)]
    assert write.status.start_time == Time.of(START)
    told = of(CommandAgent, decided)
    leader = world.agents[world.at(0)]
    assert [(each.verb, each.round, each.nodes, each.node_rank) for each in told] == [
        ("run", 1, 2, 0),
        ("run", 1, 2, 1),
    ]
    assert {(each.master_address, each.master_port) for each in told} == {(leader.address, leader.master_port)}


def test_pending_is_explained_by_messages_of_the_cluster():
    world = World(1)
    world.settle()
    uid = world.at(0)
    world.pods[uid] = replace(world.pods[uid], reason="Unschedulable", message="0/3 nodes have 8 GPUs")
    world.settle()
    assert world.status.reason == "Unschedulable"
    assert "0/3 nodes have 8 GPUs" in world.status.message


def test_agents_that_never_called_are_named_and_a_new_operator_does_not_take_that_back():
    world = World(2)
    world.settle()
    for uid, pod in world.pods.items():
        world.pods[uid] = replace(pod, phase="Running", started=world.now)
    world.settle()
    assert (world.status.state, world.status.reason) == ("Starting", "WaitingForAgents")
    world.now += 31.0
    world.settle()
    assert world.status.reason == "AgentSilent"
    assert all(pod.name in world.status.message for pod in world.pods.values())
    world.restart_operator()
    assert plan(world.view()).actions == ()
    for uid in world.pods:
        world.call_in(uid)
    world.settle()
    assert world.status.round == 1


def test_a_restarted_operator_sends_the_same_command_for_the_open_round():
    world = World(2).to_running()
    before = dict(world.commands)
    world.restart_operator()
    decided = world.step()
    assert {each.pod_uid: each for each in of(CommandAgent, decided)} == before
    assert world.status.round == 1


def test_a_running_job_at_rest_needs_nothing():
    world = World(2).to_running()
    assert plan(world.view()).actions == ()


def test_the_defaults_of_the_spec_are_a_valid_job():
    assert plan(replace(World(1).view(), job=replace(World(1).job, spec=TrainingJobSpec()))).actions


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"stepz": 5}, "spec.trainer.params.stepz: unknown field: did you mean steps?"),
        ({"steps": "many"}, "spec.trainer.params.steps: expected a whole number, got text 'many'"),
    ],
)
def test_parameters_that_the_trainer_would_reject_end_the_job_before_a_pod_is_created(params, words):
    world = World(2, trainer=Trainer(name="cvrp", params=params))
    world.settle()
    assert (world.status.state, world.status.reason, world.created) == ("Failed", "InvalidSpec", [])
    assert words in world.status.message


def test_parameters_are_judged_again_after_a_suspend_and_never_while_a_gang_is_there():
    world = World(1, trainer=Trainer(name="cvrp")).to_running()
    world.edit(trainer=Trainer(name="cvrp", params={"stepz": 5}))
    world.settle()
    assert world.status.state == "Running"
    world.edit(suspend=True)
    world.settle()
    world.finish_deletions()
    world.settle()
    assert world.status.state == "Suspended"
    world.edit(suspend=False)
    world.settle()
    assert (world.status.state, world.status.reason, len(world.created)) == ("Failed", "InvalidSpec", 1)
