"""The loop against a world in memory, on virtual time: what it promises when the cluster does not answer."""

import asyncio

import pytest
from msgspec.structs import replace
from tests.support.reconcile.running_controller import KEY, controlled, pass_time
from tests.support.reconcile.world import START, Ports, World
from tests.support.virtual_time import virtual_time

from torchyard.api.status import State, TrainingJobStatus
from torchyard.api.values import Time
from torchyard.reconcile.actions import CreatePod, EmitEvent, Plan, WriteStatus
from torchyard.reconcile.loop.controller import Settings
from torchyard.reconcile.loop.executor import Executor, StatusWriter
from torchyard.reconcile.ports import Conflict, Unavailable


@virtual_time
async def test_a_job_goes_from_its_creation_to_success():
    world = World(2)
    async with controlled(world) as (controller, _):
        await pass_time(world, 1)
        world.start_pods()
        controller.enqueue(KEY)
        await pass_time(world, 1)
        assert set(world.training.values()) == {1}
        for uid in list(world.training):
            world.end_workers(uid, 0)
        controller.enqueue(KEY)
        await pass_time(world, 1)
    assert world.status.state == "Succeeded"


@virtual_time
async def test_the_next_round_opens_without_any_further_news_once_the_back_off_has_ended():
    world = World(1)
    async with controlled(world) as (controller, _):
        await pass_time(world, 1)
        world.start_pods()
        controller.enqueue(KEY)
        await pass_time(world, 1)
        world.end_workers(world.at(0), 137)
        controller.enqueue(KEY)
        await pass_time(world, 3)
    assert set(world.training.values()) == {2}


@pytest.mark.parametrize("call", ["write_status", "create_pod", "emit_event"])
@pytest.mark.parametrize("error", [Conflict("changed"), Unavailable("503"), Unavailable("429", retry_after=30.0)])
@virtual_time
async def test_a_cluster_that_refuses_once_changes_nothing_in_the_end(call, error):
    world = World(2)
    meta = replace(world.job.metadata, creation_timestamp=Time.of(START - 60))
    world.job = replace(world.job, metadata=meta)
    ports = Ports(world)
    ports.failing[call] = [error]
    async with controlled(world, ports):
        await pass_time(world, 0.01)
        if call == "write_status":
            assert world.created == [], "nothing is created that the status does not know"
        await pass_time(world, 60)
    assert sorted(each.name for each in world.created) == ["job-0-0", "job-0-1"]
    assert world.status.reason == "WaitingForPods"
    assert [each.status for each in world.status.conditions if each.type == "Stalled"] == ["False"]


@pytest.mark.parametrize("call", ["write_status", "create_pod"])
@virtual_time
async def test_a_new_job_gets_a_status_and_each_pod_once_though_the_first_try_of_either_fails(call):
    world = World(2)
    ports = Ports(world)
    ports.failing[call] = [Unavailable("503", retry_after=30.0)]
    async with controlled(world, ports):
        await pass_time(world, 0.01)
        assert world.status.state == ("" if call == "write_status" else "Pending")
        assert len(world.created) == (2 if call == "write_status" else 1)
        await pass_time(world, 60)
    assert sorted(each.name for each in world.created) == ["job-0-0", "job-0-1"]
    assert world.status.reason == "WaitingForPods"


@virtual_time
async def test_a_server_that_fails_to_create_the_pods_is_quoted():
    world = World(1)
    ports = Ports(world)
    broken = "POST /api/v1/namespaces/team/pods: 500 Internal error occurred: the patch of webhook x is no JSON"
    ports.failing["create_pod"] = [Unavailable(broken)] * 100
    async with controlled(world, ports):
        await pass_time(world, 90)
        assert world.status.reason == "PodsNotCreated"
        assert f"(no pod for more than 20 s, {broken})" in world.status.message
        ports.failing["create_pod"].clear()
        await pass_time(world, 300)  # a delay, and the next look
    assert len(world.created) == 1
    assert world.status.reason == "WaitingForPods"


@virtual_time
async def test_a_server_that_fails_to_create_the_pod_that_replaces_a_lost_one_is_quoted():
    world = World(2)
    ports = Ports(world)
    async with controlled(world, ports) as (controller, _):
        await pass_time(world, 1)
        world.start_pods()
        controller.enqueue(KEY)
        await pass_time(world, 1)
        ports.failing["create_pod"] = [Unavailable("500 Internal error occurred")] * 100
        world.vanish(world.at(1))
        controller.enqueue(KEY)
        await pass_time(world, 300)
        assert (world.status.state, world.status.reason) == ("Recovering", "PodsNotCreated")
        assert "(1 of 2 pods missing for more than 20 s, 500 Internal error occurred)" in world.status.message
        ports.failing["create_pod"].clear()
        await pass_time(world, 300)  # a delay, and the next look
        world.start_pods()
        controller.enqueue(KEY)
        await pass_time(world, 5)
    assert set(world.training.values()) == {2}
    assert world.status.reason != "PodsNotCreated"


@virtual_time
async def test_a_server_that_asks_for_thirty_seconds_gets_them():
    world = World(1)
    ports = Ports(world)
    ports.failing["create_pod"] = [Unavailable("429", retry_after=30.0)]
    async with controlled(world, ports):
        await pass_time(world, 29)
        assert world.created == []
        await pass_time(world, 17)
        assert len(world.created) == 1


@virtual_time
async def test_what_the_cluster_does_not_answer_is_said_once_until_it_changes(caplog):
    world = World(1)
    ports = Ports(world)
    ports.failing["write_status"] = [
        Unavailable(why) for why in (*["are not served at the moment"] * 20, *["500"] * 20)
    ]
    async with controlled(world, ports) as (controller, _):
        while ports.failing["write_status"]:  # as agents have news all the time
            controller.enqueue(KEY)
            await pass_time(world, 2)
        await pass_time(world, 60)
        assert len(world.created) == 1
        ports.failing["write_status"] = [Unavailable("500")]
        world.start_pods()
        controller.enqueue(KEY)
        await pass_time(world, 60)
    said = [record.getMessage().rpartition(": ")[2] for record in caplog.records]
    assert said == ["are not served at the moment", "500", "500"]


@virtual_time
async def test_an_error_on_one_job_stalls_that_job_alone_and_is_reported_on_it():
    world = World(1)
    ports = Ports(world)
    ports.failing["create_pod"] = [RuntimeError("x" * 5000) for _ in range(4)]
    async with controlled(world, ports) as (controller, _):
        await pass_time(world, 0.5)
        (stalled,) = [each for each in world.status.conditions if each.type == "Stalled"]
        assert (stalled.status, stalled.reason) == ("True", "ReconcileFailed")
        assert "RuntimeError" in stalled.message
        assert len(stalled.message) <= 1024
        controller.enqueue(("default", "another"))
        await pass_time(world, 60)
    assert len(world.created) == 1
    assert [each.status for each in world.status.conditions if each.type == "Stalled"] == ["False"]


@pytest.mark.parametrize("history", ["none", "older", "a state"])
@virtual_time
async def test_until_all_pods_are_known_only_first_gangs_are_created(history):
    world = World(2)
    ports = Ports(world)
    known = asyncio.Event()
    if history == "older":
        meta = replace(world.job.metadata, creation_timestamp=Time.of(START - 60))
        world.job = replace(world.job, metadata=meta)
    elif history == "a state":
        world.job = replace(world.job, status=replace(world.status, state=State("Pending"), round=3))
    async with controlled(world, ports, complete=known.is_set) as (controller, _):
        await pass_time(world, 120)
        assert len(world.created) == (2 if history == "none" else 0)
        calls = list(ports.calls)
        world.start_pods()
        controller.enqueue(KEY)
        await pass_time(world, 120)
        assert ports.calls == calls, "what there is of pods is not known yet: no round is opened"
        known.set()
        controller.enqueue(KEY)
        await pass_time(world, 1)
        assert len(world.created) == 2
        assert world.status.round == {"none": 1, "older": 0, "a state": 3}[history]


@virtual_time
async def test_a_job_that_is_gone_is_dropped_quietly():
    world = World(1)
    async with controlled(world) as (controller, ports):
        await pass_time(world, 1)
        world.job = None
        ports.calls.clear()
        controller.enqueue(KEY)
        await pass_time(world, 100)
        assert ports.calls == []


@pytest.mark.parametrize("then", ["gone", "created again"])
@virtual_time
async def test_nothing_is_done_for_a_job_whose_status_write_finds_it_gone(then):
    class Late(Ports):
        """The news of the deletion comes later than the answer to a write."""

        async def write_status(self, job, status):
            self.calls.append("write_status")
            again = replace(self.world.job, metadata=replace(self.world.job.metadata, uid="another"))
            self.world.job = again if then == "created again" else None

    ports = Late(World(1))
    executor = Executor(ports, ports, StatusWriter(ports, lambda: START))
    create = CreatePod(name="job-1-0", index=0, incarnation=1)
    write = WriteStatus(status=TrainingJobStatus(state=State("Recovering")), urgent=True)
    event = EmitEvent(type="Normal", reason="PodLost", message="")
    assert await executor.carry_out(ports.world.job, Plan(actions=(write, create, event))) is None
    assert ports.calls == ["write_status"]


@virtual_time
async def test_pods_are_created_in_parallel_within_the_budget():
    class Slow(Ports):
        busy = most = 0

        async def create_pod(self, job, action):
            self.busy += 1
            self.most = max(self.most, self.busy)
            await asyncio.sleep(1)
            self.busy -= 1
            await super().create_pod(job, action)

    world = World(100)
    ports = Slow(world)
    async with controlled(world, ports):
        await pass_time(world, 2.1)
    assert (len(world.created), ports.most) == (100, 50)


@virtual_time
async def test_one_pod_that_cannot_be_created_does_not_keep_the_others_back():
    world = World(4)
    ports = Ports(world)
    ports.failing["create_pod"] = [Unavailable("500")]
    executor = Executor(ports, ports, StatusWriter(ports, lambda: START))
    actions = tuple(CreatePod(name=f"job-0-{index}", index=index, incarnation=0) for index in range(4))
    event = EmitEvent(type="Normal", reason="JobCreated", message="")
    with pytest.raises(Unavailable):
        await executor.carry_out(world.job, Plan(actions=(*actions, event)))
    assert len(world.created) == 3
    assert world.events == [event], "no later plan tells of a transition that was persisted"


@virtual_time
async def test_other_tasks_get_their_turn_between_jobs_that_need_no_write():
    world = World(1)
    async with controlled(world, settings=Settings(workers=2)) as (controller, _):
        for number in range(200):
            controller.enqueue(("default", f"gone-{number}"))
        turns = 0
        while controller.depth:
            turns += 1
            await asyncio.sleep(0)
    assert turns >= 100
