"""When a job is looked at and its status written, on virtual time: states at once, figures seldom, pods first."""

import asyncio

import pytest
from msgspec.structs import replace
from tests.support.reconcile.running_controller import KEY, controlled, pass_time
from tests.support.reconcile.world import START, Ports, World
from tests.support.virtual_time import virtual_time

from torchyard.reconcile.actions import WriteStatus
from torchyard.reconcile.loop.executor import StatusWriter


@virtual_time
async def test_figures_are_written_once_an_interval_and_a_state_at_once():
    world = World(1)
    async with controlled(world) as (controller, ports):
        await pass_time(world, 1)
        world.start_pods()
        controller.enqueue(KEY)
        await pass_time(world, 1)
        world.advance_training()
        controller.enqueue(KEY)
        await pass_time(world, 1)
        assert world.status.state == "Running"
        ports.calls.clear()
        for _ in range(100):
            world.advance_training()
            controller.enqueue(KEY)
            await pass_time(world, 1)
        assert 9 <= ports.calls.count("write_status") <= 11
        await pass_time(world, 11)
        assert world.status.progress.step == 101, "the last figures are not forgotten"
        ports.calls.clear()
        world.end_workers(world.at(0), 0)
        controller.enqueue(KEY)
        await pass_time(world, 0.1)
        assert world.status.state == "Succeeded"


@pytest.mark.parametrize(("state", "pause"), [("Running", 10.0), ("Pending", 30.0)])
@virtual_time
async def test_figures_are_written_once_an_interval_and_less_often_while_nothing_is_trained(state, pause):
    world = World(1)
    ports = Ports(world)
    now = START
    writer = StatusWriter(ports, lambda: now)

    def figures(number, **more):
        return WriteStatus(status=replace(world.status, state=state, round=number), **({"urgent": False} | more))

    await writer.write(world.job, WriteStatus(status=world.status, urgent=True), 10.0)
    assert ports.calls == [], "it does not differ"
    assert await writer.write(world.job, figures(1), 10.0) == pause, "the time of the last one is not known"
    assert await writer.write(world.job, figures(1, urgent=True), 10.0) == 0.0, "the next transition may be due"
    now += 4.0
    assert await writer.write(world.job, figures(2), 10.0) == pause - 4.0
    now += pause - 4.0
    assert await writer.write(world.job, figures(2), 10.0) is None
    assert await writer.write(world.job, figures(3), 60.0) == 60.0
    assert len(ports.calls) == 2


@virtual_time
async def test_a_job_at_rest_costs_no_calls():
    world = World(1, suspend=True)
    async with controlled(world) as (_, ports):
        await pass_time(world, 5)
        ports.calls.clear()
        await pass_time(world, 3600)
        assert ports.calls == []


@virtual_time
async def test_news_that_may_wait_is_one_look_and_news_that_may_not_comes_before_it():
    looks = []
    ports = Ports(World(1))
    ports.job = looks.append
    async with controlled(ports.world, ports) as (controller, _):
        await asyncio.sleep(1)
        for _ in range(8):
            controller.enqueue(KEY, 0.2)
        await asyncio.sleep(0.1)
        assert len(looks) == 1, "the one of the beginning"
        await asyncio.sleep(1)
        assert len(looks) == 2
        controller.enqueue(KEY, 0.2)
        controller.enqueue(KEY)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(looks) == 3


@virtual_time
async def test_a_first_status_yields_to_pods_of_other_jobs_for_a_limited_time():
    world = World(2)
    ports = Ports(world)
    ports.busy = True
    async with controlled(world, ports) as (controller, _):
        await pass_time(world, 25)
        assert (len(world.created), world.status.state) == (2, "")
        await pass_time(world, 6)
        assert (world.status.state, world.status.reason) == ("Pending", "WaitingForPods")
        world.start_pods()
        controller.enqueue(KEY)
        await pass_time(world, 1)
        assert world.status.round == 1, "whatever waits: a round is written before any agent gets it"


@pytest.mark.parametrize("relief", ["no write waits", "a pod failed", "all agents are there"])
@virtual_time
async def test_it_waits_no_longer_than_it_has_to(relief):
    world = World(2)
    ports = Ports(world)
    ports.busy = True
    async with controlled(world, ports) as (controller, _):
        await pass_time(world, 1)
        assert (len(world.created), world.status.state) == (2, "")
        if relief == "no write waits":
            ports.busy = False
            await pass_time(world, 5)
            assert world.status.state == "Pending"
        elif relief == "a pod failed":
            world.end_pod(world.at(1), 1, "OOMKilled")
            controller.enqueue(KEY)
            await pass_time(world, 1)
            assert world.status.state == "Recovering"
            await pass_time(world, 1)
        else:
            world.start_pods()
            controller.enqueue(KEY)
            await pass_time(world, 1)
            assert world.status.round == 1
