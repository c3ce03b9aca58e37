"""The cache of one collection: what it knows after lists, watches and gaps, in whatever order things arrive."""

import asyncio
import itertools
import json
from contextlib import asynccontextmanager

import pytest
from pod_json import pod, text
from virtual import in_virtual_time

from torchyard.cluster.kube.errors import Gone
from torchyard.cluster.kube.facts import read
from torchyard.cluster.kube.informer import Informer
from torchyard.cluster.kube.objects import KubePod
from torchyard.engine.ports import Unavailable

PATH = "/api/v1/pods"


GATED = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "1 gate"}


class Server:
    """A collection of pods that lists and watches as the API server does; `lines` holds what a watch may tell."""

    def __init__(self) -> None:
        self.pods = {}
        self.version = 100
        self.watches = []
        self.lists = 0
        self.errors = []
        self.streams = asyncio.Queue()
        self.page = 500

    async def request(self, verb, path, *, params=None, timeout=0):  # noqa: ASYNC109 -- the client's own signature
        assert (verb, path) == ("GET", PATH)
        if self.errors:
            raise self.errors.pop(0)
        self.lists += 1
        everything = sorted(self.pods.values(), key=lambda each: each["metadata"]["name"])
        start = int(params.get("continue", 0))
        most = int(params.get("limit", 0)) and self.page
        items = everything[start : start + most] if most else everything
        more = {"continue": str(start + most)} if most and start + most < len(everything) else {}
        return json.dumps({"metadata": {"resourceVersion": str(self.version), **more}, "items": items}).encode()

    async def stream(self, path, params):
        self.watches.append(params["resourceVersion"])
        lines = await self.streams.get()
        while (line := await lines.get()) is not None:
            if isinstance(line, Exception):
                raise line
            yield line

    def watch(self):
        """The next watch tells what is put in here; None ends it."""
        lines = asyncio.Queue()
        self.streams.put_nowait(lines)
        return lines

    def make(self, index, **metadata):
        """A pod that exists now, and the version it has."""
        self.version += 1
        name = f"cvrp-0-{index}"
        made = pod(metadata={"name": name, "uid": f"uid-{index}", "resourceVersion": str(self.version), **metadata})
        self.pods[name] = made
        return made

    def remove(self, index):
        self.version += 1
        gone = self.pods.pop(f"cvrp-0-{index}")
        gone["metadata"]["resourceVersion"] = str(self.version)
        return gone


def line(kind, document):
    return json.dumps({"type": kind, "object": document}).encode()


@asynccontextmanager
async def following(server):
    heard = []
    informer = Informer(
        server,
        PATH,
        of=KubePod,
        read=read,
        changed=lambda before, after: heard.append((before and before.uid, after and after.uid)),
        jitter=lambda: 0.0,
    )
    task = asyncio.create_task(informer.run())
    yield informer, heard
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def moment():
    for _ in itertools.repeat(None, 20):
        await asyncio.sleep(0)


def known(informer):
    return sorted(each.pod.name for each in informer.objects.values())


def test_it_knows_what_was_there_and_what_happens():
    async def main():
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

    in_virtual_time(main)


def test_a_broken_watch_goes_on_where_it_stopped_without_another_list():
    async def main():
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

    in_virtual_time(main)


def test_a_line_cut_short_is_a_broken_connection():
    async def main():
        server = Server()
        first, second = server.watch(), server.watch()
        async with following(server) as (informer, _):
            await informer.synced.wait()
            added = server.make(0)
            first.put_nowait(line("ADDED", added)[:-40])
            second.put_nowait(line("ADDED", added))
            await asyncio.sleep(5)
            assert known(informer) == ["cvrp-0-0"]

    in_virtual_time(main)


def test_what_was_deleted_in_a_gap_is_swept_out():
    async def main():
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

    in_virtual_time(main)


def test_our_own_write_is_known_at_once_and_told_once():
    async def main():
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

    in_virtual_time(main)


@pytest.mark.parametrize("first", ["the answer", "the watch"])
def test_an_answer_that_held_only_metadata_is_completed_by_the_watchs_word_of_the_same_version(first):
    async def main():
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

    in_virtual_time(main)


def test_a_list_that_is_older_than_our_write_does_not_undo_it():
    async def main():
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

    in_virtual_time(main)


def test_an_object_never_goes_back_in_time():
    async def main():
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

    in_virtual_time(main)


def test_what_is_gone_stays_gone_whatever_arrives_late():
    async def main():
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

    in_virtual_time(main)


def test_a_late_deletion_of_a_former_pod_does_not_touch_its_successor_of_the_same_name():
    async def main():
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

    in_virtual_time(main)


def test_one_object_that_cannot_be_read_hides_no_other():
    async def main():
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

    in_virtual_time(main)


def test_a_long_list_comes_in_pages():
    async def main():
        server = Server()
        server.page = 2
        for index in range(5):
            server.make(index)
        async with following(server) as (informer, _):
            await informer.synced.wait()
            assert len(known(informer)) == 5
            assert server.lists == 3

    in_virtual_time(main)


def test_pages_that_went_stale_are_read_at_one_go():
    async def main():
        server = Server()
        server.make(0)
        server.errors = [Gone("continue token is too old")]
        async with following(server) as (informer, _):
            await informer.synced.wait()
            assert known(informer) == ["cvrp-0-0"]

    in_virtual_time(main)


def test_a_server_that_is_away_is_asked_ever_less_often_and_found_again():
    async def main():
        server = Server()
        server.errors = [Unavailable("refused") for _ in range(12)]
        server.make(0)
        begun = asyncio.get_running_loop().time()
        async with following(server) as (informer, _):
            await informer.synced.wait()
            waited = asyncio.get_running_loop().time() - begun
        assert 100 < waited < 200

    in_virtual_time(main)


def test_a_server_that_ends_every_watch_at_once_is_not_asked_in_a_tight_loop():
    async def main():
        server = Server()
        async with following(server) as (informer, _):
            await informer.synced.wait()
            for _ in range(1000):
                server.watch().put_nowait(None)
            await asyncio.sleep(60)
            assert 3 < len(server.watches) < 30

    in_virtual_time(main)


def test_a_stalled_watch_is_corrected_for_one_job_by_a_list():
    async def main():
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

    in_virtual_time(main)
