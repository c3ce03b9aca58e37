"""The cache of one collection: what it knows after lists, watches and gaps."""

import asyncio

import pytest
from tests.support.kubernetes.watched import Server, following, known, line, moment
from tests.support.virtual_time import virtual_time

from torchyard.kubernetes.client import pages
from torchyard.kubernetes.client.errors import Gone, TooLarge
from torchyard.reconcile.ports import Unavailable


@virtual_time
async def test_it_knows_what_was_there_and_what_happens():
    server = Server()
    server.make(0)
    lines = server.watch()
    async with following(server) as (informer, heard):
        await informer.synced.wait()
        lines.put_nowait(line("ADDED", server.make(1)))
        lines.put_nowait(line("DELETED", server.remove(0)))
        await moment()
        assert known(informer) == ["cvrp-0-1"]
        assert heard == [(None, "uid-0"), (None, "uid-1"), ("uid-0", None)]
        assert informer.version == server.version


@virtual_time
async def test_a_broken_watch_continues_where_it_stopped_without_another_list():
    server = Server()
    first, second = server.watch(), server.watch()
    async with following(server) as (informer, _):
        await informer.synced.wait()
        first.put_nowait(line("BOOKMARK", {"metadata": {"resourceVersion": "120"}}))
        first.put_nowait(Unavailable("connection reset"))
        server.version = 120
        second.put_nowait(line("ADDED", server.make(0)))
        await asyncio.sleep(5)
        assert (server.watches, server.lists) == (["100", "120"], 1)
        assert known(informer) == ["cvrp-0-0"]


@virtual_time
async def test_a_line_cut_short_is_a_broken_connection():
    server = Server()
    first, second = server.watch(), server.watch()
    async with following(server) as (informer, _):
        await informer.synced.wait()
        added = server.make(0)
        first.put_nowait(line("ADDED", added)[:-40])
        second.put_nowait(line("ADDED", added))
        await asyncio.sleep(5)
        assert known(informer) == ["cvrp-0-0"]


@virtual_time
async def test_what_was_deleted_in_a_gap_is_swept_out():
    server = Server()
    server.make(0)
    server.make(1)
    first = server.watch()
    server.watch()
    async with following(server) as (informer, heard):
        await informer.synced.wait()
        server.remove(0)
        gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
        first.put_nowait(line("ERROR", gone))
        await asyncio.sleep(5)
        assert known(informer) == ["cvrp-0-1"]
        assert heard[-1] == ("uid-0", None)
        assert server.lists == 2


@virtual_time
async def test_one_object_that_cannot_be_read_hides_no_other():
    server = Server()
    server.make(0)
    server.make(1)["status"]["containerStatuses"] = "none"
    lines = server.watch()
    async with following(server) as (informer, _):
        await informer.synced.wait()
        broken = server.make(2)
        broken["spec"] = []
        lines.put_nowait(line("ADDED", broken))
        lines.put_nowait(line("ADDED", server.make(3)))
        await moment()
        assert known(informer) == ["cvrp-0-0", "cvrp-0-3"]


@virtual_time
async def test_a_long_list_comes_in_pages():
    server = Server()
    server.page = 2
    for index in range(5):
        server.make(index)
    async with following(server) as (informer, _):
        await informer.synced.wait()
        assert len(known(informer)) == 5
        assert server.lists == 3


@virtual_time
async def test_pages_get_smaller_where_objects_are_large(monkeypatch):
    """A user may give each pod of a job a megabyte of text: an operator that starts must read them all the same."""
    monkeypatch.setattr(pages, "PAGE_BYTES", 64 * 1024)
    server = Server()
    for index in range(40):
        server.make(index, annotations={"example.com/notes": "x" * 10_000})
    async with following(server) as (informer, _):
        await informer.synced.wait()
        assert len(known(informer)) == 40
        monkeypatch.setattr(pages, "PAGE_BYTES", 1024)
        with pytest.raises(TooLarge):
            await informer.sweep()


@virtual_time
async def test_pages_that_went_stale_are_read_at_one_go():
    server = Server()
    server.make(0)
    server.errors = [Gone("continue token is too old")]
    async with following(server) as (informer, _):
        await informer.synced.wait()
        assert known(informer) == ["cvrp-0-0"]


@virtual_time
async def test_a_server_that_is_away_is_asked_ever_less_often_and_found_again():
    server = Server()
    server.errors = [Unavailable("refused") for _ in range(12)]
    server.make(0)
    begun = asyncio.get_running_loop().time()
    async with following(server) as (informer, _):
        await informer.synced.wait()
        waited = asyncio.get_running_loop().time() - begun
    assert 100 < waited < 200


@virtual_time
async def test_a_server_that_ends_every_watch_at_once_is_not_asked_in_a_tight_loop():
    server = Server()
    async with following(server) as (informer, _):
        await informer.synced.wait()
        for _ in range(1000):
            server.watch().put_nowait(None)
        await asyncio.sleep(60)
        assert 3 < len(server.watches) < 30


@virtual_time
async def test_a_stalled_watch_is_corrected_for_one_job_by_a_list():
    server = Server()
    server.make(0)
    server.make(1)
    server.watch()
    async with following(server) as (informer, _):
        await informer.synced.wait()
        server.remove(0)
        server.make(2)
        await informer.refresh("torchyard.dev/job-uid=job-uid", lambda facts: facts.job_uid == "job-uid")
        assert known(informer) == ["cvrp-0-1", "cvrp-0-2"]
