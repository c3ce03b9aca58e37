"""`wait` and `submit --watch` against an API server that deletes a job as soon as it is over, or makes another one."""

import asyncio
import json

import pytest
from aiohttp import web
from tests.support.cli.cluster import JOB, cluster
from tests.support.waiting import DEADLINE

RUNNING, DONE, FAILED = ({"state": state} for state in ("Running", "Succeeded", "Failed"))


def job(version, status, uid="u-1", **spec):
    metadata = {**JOB["metadata"], "uid": uid, "resourceVersion": str(version)}
    return {**JOB, "metadata": metadata, "spec": {**JOB["spec"], **spec}, "status": status}


class Server:
    """A collection of one job, and one watch after the other. An item of a watch is an event, or an HTTP error."""

    def __init__(self, listed, *watches):
        self.listed, self.watches = list(listed), list(watches)
        self.positions = []

    async def __call__(self, request):
        if request.method == "POST":
            return web.json_response(job(1, {}))
        if request.path.endswith("/events"):
            return web.json_response({"items": []})
        if request.path.endswith("/cvrp"):
            status = {"kind": "Status", "code": 404, "details": {"name": "cvrp", "kind": "trainingjobs"}}
            return web.json_response(status, status=404)
        if "watch" not in request.query:
            assert request.query["fieldSelector"] == "metadata.name=cvrp"
            items = self.listed.pop(0) if len(self.listed) > 1 else self.listed[0]
            return web.json_response({"metadata": {"resourceVersion": "10"}, "items": items})
        self.positions.append(request.query["resourceVersion"])
        events = self.watches.pop(0)
        if isinstance(events, int):
            return web.json_response({"kind": "Status", "code": events}, status=events)
        response = web.StreamResponse()
        await response.prepare(request)
        for kind, document in events:
            await response.write(json.dumps({"type": kind, "object": document}).encode() + b"\n")
        return response


async def waits(torchyard, server, *words):
    async with cluster(torchyard, server):
        return await asyncio.to_thread(torchyard, "wait", "cvrp", "-n", "team", *words)


BOOKMARK = ("BOOKMARK", {"kind": "TrainingJob", "metadata": {"resourceVersion": "20"}})


@pytest.mark.parametrize(
    ("server", "words", "code", "said"),
    [
        (Server([[job(5, RUNNING)]], [("DELETED", job(12, DONE))]), (), 0, ""),
        (Server([[job(5, RUNNING)]], [("DELETED", job(12, FAILED))]), (), 1, ""),
        (Server([[job(5, RUNNING)]], [("DELETED", job(12, RUNNING))]), (), 1, "was deleted before it ended"),
        (Server([[job(5, RUNNING)]], [("DELETED", job(12, RUNNING))]), ("--for", "deleted"), 0, ""),
        (Server([[job(5, RUNNING)], [job(30, DONE, "u-2")]], 410), (), 1, "was deleted before it ended"),
        (Server([[job(5, RUNNING)], [job(30, DONE)]], [("ERROR", {"code": 410})]), (), 0, ""),
        (Server([[job(5, RUNNING)]], [("ADDED", job(11, DONE, "u-2")), ("DELETED", job(12, DONE))]), (), 0, ""),
    ],
    ids=["ttl", "ttl of a failure", "deleted", "for deleted", "another job", "a watch too old", "another's event"],
)
async def test_the_last_state_of_the_job_that_was_there_first_decides(torchyard, server, words, code, said):
    done = await waits(torchyard, server, *words)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr


async def test_a_watch_that_the_server_ends_continues_where_it_stopped(torchyard):
    server = Server([[job(5, RUNNING)]], [BOOKMARK], [("MODIFIED", job(21, DONE))])
    assert (await waits(torchyard, server)).returncode == 0
    assert server.positions == ["10", "20"]


async def test_a_job_that_is_gone_already_is_deleted(torchyard):
    assert (await waits(torchyard, Server([[]]), "--for", "deleted")).returncode == 0


async def test_a_job_that_never_was_is_named(torchyard):
    done = await waits(torchyard, Server([[]]))
    assert done.returncode == 64
    assert "there is no TrainingJob 'cvrp'" in done.stderr


async def test_a_submitted_job_that_its_ttl_deletes_at_once_has_succeeded(torchyard, tmp_path):
    file = tmp_path / "job.json"
    file.write_text(
        json.dumps({name: JOB[name] for name in ("apiVersion", "kind", "spec")} | {"metadata": {"name": "cvrp"}})
    )
    server = Server([[job(5, RUNNING)]], [("MODIFIED", job(11, DONE)), ("DELETED", job(12, DONE))])
    async with cluster(torchyard, server):
        done = await asyncio.to_thread(torchyard, "submit", file, "-n", "team", "--watch")
    assert (done.returncode, "cvrp succeeded" in done.stderr) == (0, True), done.stderr


@pytest.mark.parametrize("goal", ["over", "running"])
def test_a_run_of_this_machine_that_nothing_controls_is_not_waited_for(torchyard, goal):
    """Its status says what was true last: nothing changes it by itself."""
    torchyard.record("cvrp", {"state": "Starting"})
    done = torchyard("wait", "cvrp", "--for", goal)
    assert done.returncode == 1
    assert "the run 'cvrp' is interrupted: the process that controlled it is gone" in done.stderr
    assert "`torchyard resume cvrp` continues it" in done.stderr


def test_the_deletion_of_a_run_that_nothing_controls_is_waited_for(torchyard):
    torchyard.record("cvrp", {"state": "Running"})
    waiting = torchyard.start("wait", "cvrp", "--for", "deleted", "--timeout", "60s")
    assert torchyard("wait", "cvrp").returncode == 1, "which takes longer than it takes to give up"
    assert waiting.poll() is None
    assert torchyard("rm", "cvrp").returncode == 0
    assert waiting.wait(DEADLINE) == 0
