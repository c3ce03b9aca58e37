"""What a watch never delivered is found by comparing versions; nothing is taken from an old list."""

import asyncio
import copy

from tests.support.kubernetes.watched import Server, following, known, line
from tests.support.virtual_time import virtual_time

RUNS = {"phase": "Running"}


@virtual_time
async def test_lost_events_are_made_up_for_by_a_comparison():
    server = Server()
    server.page = 2
    for index in range(3):
        server.make(index)
    server.watch()
    async with following(server) as (informer, heard):
        await informer.synced.wait()
        server.make(0)["status"] = RUNS
        server.remove(1)
        server.make(3)
        del heard[:]
        await informer.sweep()
        assert known(informer) == ["cvrp-0-0", "cvrp-0-2", "cvrp-0-3"]
        assert informer.objects["uid-0"].pod.phase == "Running"
        assert sorted(heard, key=str) == [("uid-0", "uid-0"), ("uid-1", None), (None, "uid-3")]


@virtual_time
async def test_news_that_is_only_late_costs_no_second_list():
    server = Server()
    server.make(0)
    server.make(1)
    lines = server.watch()
    async with following(server) as (informer, _):
        await informer.synced.wait()
        made, removed = server.make(2), server.remove(0)
        sweeping = asyncio.create_task(informer.sweep())
        await asyncio.sleep(1)
        lines.put_nowait(line("ADDED", made))
        lines.put_nowait(line("DELETED", removed))
        await sweeping
        assert known(informer) == ["cvrp-0-1", "cvrp-0-2"]
        assert server.lists == 2, "one to begin with, one of versions"


@virtual_time
async def test_objects_of_others_are_not_missed():
    server = Server()
    server.make(0)
    server.make(1, ownerReferences=[])
    server.watch()
    async with following(server) as (informer, _):
        await informer.synced.wait()
        await informer.sweep()
        assert (known(informer), server.lists) == (["cvrp-0-0"], 2)


@virtual_time
async def test_an_old_list_takes_nothing_back():
    server = Server()
    server.make(0)
    server.make(1)
    old = server.version, copy.deepcopy(server.pods)
    server.make(0)["status"] = RUNS
    lines = server.watch()
    async with following(server) as (informer, heard):
        await informer.synced.wait()
        lines.put_nowait(line("DELETED", server.remove(1)))
        lines.put_nowait(line("ADDED", server.make(2)))
        await asyncio.sleep(1)
        server.cached = old
        del heard[:]
        await informer.sweep()
        assert known(informer) == ["cvrp-0-0", "cvrp-0-2"]
        assert informer.objects["uid-0"].pod.phase == "Running"
        assert (heard, server.lists) == ([], 2)
