"""The cache of one collection, in whatever order its own writes, lists and the watch tell of an object."""

import asyncio

import pytest
from tests.support.kubernetes.pod_json import text
from tests.support.kubernetes.watched import Server, following, known, line, moment
from tests.support.virtual_time import virtual_time

from torchyard.kubernetes.client.errors import Gone

GATED = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "1 gate"}


@virtual_time
async def test_our_own_write_is_known_at_once_and_delivered_once():
    server = Server()
    lines = server.watch()
    async with following(server) as (informer, heard):
        await informer.synced.wait()
        made = server.make(0)
        informer.put(text(made))
        assert known(informer) == ["cvrp-0-0"]
        for _ in range(3):
            lines.put_nowait(line("ADDED", made))
        await moment()
        assert heard == [(None, "uid-0")]


@pytest.mark.parametrize("first", ["the answer", "the watch"])
@virtual_time
async def test_an_answer_that_held_only_metadata_is_completed_by_the_watchs_word_of_the_same_version(first):
    server = Server()
    lines = server.watch()
    async with following(server) as (informer, _):
        await informer.synced.wait()
        made = server.make(0)
        made["status"] = {"phase": "Pending", "conditions": [GATED]}
        answer = text({"kind": "PartialObjectMetadata", "metadata": made["metadata"]})
        if first == "the answer":
            informer.put(answer)
            assert [each.pod.reason for each in informer.objects.values()] == [""]
        lines.put_nowait(line("ADDED", made))
        await moment()
        informer.put(answer)
        assert [each.pod.reason for each in informer.objects.values()] == ["SchedulingGated"]


@virtual_time
async def test_a_list_that_is_older_than_our_write_does_not_undo_it():
    server = Server()
    first = server.watch()
    server.watch()
    async with following(server) as (informer, _):
        await informer.synced.wait()
        made = server.make(0)
        informer.put(text(made))
        server.pods.clear()
        server.version = int(made["metadata"]["resourceVersion"]) - 1
        first.put_nowait(Gone("too old"))
        await asyncio.sleep(5)
        assert server.lists == 2
        assert known(informer) == ["cvrp-0-0"]


@virtual_time
async def test_an_object_never_goes_back_in_time():
    server = Server()
    lines = server.watch()
    async with following(server) as (informer, _):
        await informer.synced.wait()
        old = server.make(0)
        new = server.make(0, deletionTimestamp="2026-11-21T10:00:00Z")
        lines.put_nowait(line("ADDED", new))
        lines.put_nowait(line("MODIFIED", old))
        await moment()
        assert informer.objects["uid-0"].pod.deleting


@virtual_time
async def test_late_events_do_not_bring_a_deleted_object_back():
    server = Server()
    lines = server.watch()
    async with following(server) as (informer, _):
        await informer.synced.wait()
        made = server.make(0)
        late = dict(made)
        lines.put_nowait(line("ADDED", made))
        lines.put_nowait(line("DELETED", server.remove(0)))
        lines.put_nowait(line("MODIFIED", late))
        await moment()
        informer.put(text(late))
        assert known(informer) == []


@virtual_time
async def test_a_late_deletion_of_a_former_pod_does_not_touch_its_successor_of_the_same_name():
    server = Server()
    lines = server.watch()
    async with following(server) as (informer, _):
        await informer.synced.wait()
        old = server.make(0, uid="old")
        lines.put_nowait(line("ADDED", old))
        lines.put_nowait(line("ADDED", server.make(0, uid="new")))
        lines.put_nowait(line("DELETED", old))
        await moment()
        assert sorted(informer.objects) == ["new"]
