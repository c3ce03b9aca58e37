"""What the operator warns of while a job goes on. Situation -> message."""

import pytest
from msgspec.structs import replace
from tests.support.reconcile.world import World

from torchyard.reconcile.observed import RankReport
from torchyard.reconcile.progress import devices, ranges

ALONE = (
    "the ranks do not communicate, so each of them trains a model of its own (2 ranks made steps, none created a "
    "process group); call torch.distributed.init_process_group() and wrap the model in DDP or FSDP, or ask for a "
    "single rank"
)
UNUSED = (
    "the job holds GPUs that it does not use ({} on the CPU, gpusPerNode is 1); move the model and its inputs to the "
    "GPU, or set spec.gpusPerNode to 0"
)


def reported(world, **of_ranks):
    """Every rank reports step 9 with these fields; a list has one value a rank."""
    for rank in range(len(world.status.rendezvous.members)):
        uid = world.at(rank)
        fields = {name: value[rank] if isinstance(value, list) else value for name, value in of_ranks.items()}
        report = RankReport(round=world.status.round, rank=rank, step=9, phase="step", time=world.now, **fields)
        world.agents[uid] = replace(world.agents[uid], reports=(report,))
    world.settle()
    return world


@pytest.mark.parametrize(
    ("nodes", "gpus", "seen", "warnings"),
    [
        (2, 0, {"alone_seconds": 61.0, "device": "cpu"}, [ALONE]),
        (2, 0, {"alone_seconds": 5.0}, []),  # it may create the group yet
        (2, 0, {"alone_seconds": [61.0, None]}, []),
        (2, 0, {"alone_seconds": None}, []),
        (1, 0, {"alone_seconds": 61.0}, []),
        (2, 1, {"device": "cpu"}, [UNUSED.format("ranks 0-1 train")]),
        (2, 1, {"device": ["cuda:0 H100", "cpu"]}, [UNUSED.format("rank 1 trains")]),
        (2, 1, {"device": "cuda:0 H100"}, []),
        (2, 1, {"device": ""}, []),
    ],
)
def test_what_ranks_report_and_what_is_warned_of(nodes, gpus, seen, warnings):
    world = reported(World(nodes, gpus_per_node=gpus).to_running(), **seen)
    assert world.status.warnings == warnings
    assert [event.message for event in world.events if event.type == "Warning"] == warnings


def test_a_short_program_that_succeeded_alone_is_warned_of_at_its_end_and_only_then():
    world = reported(World(2).to_running(), alone_seconds=3.0)
    world.end_workers(world.at(0), 0)
    world.settle()
    assert world.status.warnings == []
    world.end_workers(world.at(1), 0)
    world.settle()
    assert (world.status.state, world.status.warnings) == ("Succeeded", [ALONE])
    assert [event.reason for event in world.events if event.type == "Warning"] == ["RanksNotCommunicating"]


def test_a_warning_is_announced_once_and_goes_when_the_group_is_there():
    world = World(2).to_running()
    for seconds in (61.0, 70.0, 80.0):
        reported(world, alone_seconds=seconds)
    assert [event.reason for event in world.events if event.type == "Warning"] == ["RanksNotCommunicating"]
    reported(world, alone_seconds=None)
    assert world.status.warnings == []


def test_a_program_that_repeats_a_sentence_of_the_operator_warns_under_its_own_reason():
    world = reported(World(1).to_running(), warnings=(ALONE,))
    assert [event.reason for event in world.events if event.type == "Warning"] == ["TrainerWarning"]


def test_the_device_of_every_rank_is_in_the_status_and_in_the_event_that_training_began():
    world = World(3)
    world.settle()
    world.start_pods()
    world.settle()
    reported(world, device=["cuda:0 H100", "cuda:0 H100", "cpu"])
    assert world.status.devices == {"cuda:0 H100": "0-1", "cpu": "2"}
    (began,) = [event.message for event in world.events if event.reason == "Training"]
    assert began == "the workers train (round 1, cpu: ranks 2, cuda:0 H100: ranks 0-1)"


def test_ranks_are_ranges_and_have_bounds():
    assert ranges([0, 1, 2, 5, 8, 9]) == "0-2,5,8-9"
    assert len(ranges(range(0, 10_000, 2))) <= 204
    many = [RankReport(rank=rank, device=f"cuda:{rank}") for rank in range(100)]
    assert len(devices(many)) == 16


def test_what_the_agents_report_of_themselves_is_in_the_warnings_with_and_without_reports():
    world = World(2).to_running()
    for uid, agent in world.agents.items():
        world.agents[uid] = replace(agent, notices=("warm start is off: import absent: ModuleNotFoundError",))
    world.settle()
    expected = ["the agent of a pod reports (warm start is off: import absent: ModuleNotFoundError)"]
    assert world.status.warnings == expected
    reported(world)
    assert world.status.warnings == expected
    assert [event.reason for event in world.events if event.type == "Warning"] == ["AgentNotice"]
