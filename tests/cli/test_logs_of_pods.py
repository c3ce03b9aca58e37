"""`torchyard logs` against a cluster: the last lines of each rank, readers that go away, logs that outlast the job."""

import asyncio
import json

import pytest
from aiohttp import web
from tests.support.cli.cluster import JOB, cluster, objects

# Two ranks in one pod, of which one says ten times as much, and the agent, which speaks last.
SAID = [f"[rank {0 if number % 11 else 1}] line {number}" for number in range(1, 111)] + ["all workers have ended"]


def stamped(lines, first=0):
    """As the kubelet gives them with `timestamps=true`."""
    return [f"2026-11-21T07:00:00.{number:09}Z {line}\n".encode() for number, line in enumerate(lines, first)]


class Kubelet:
    """The log of one pod: the lines so far, then those that are written while a client follows."""

    def __init__(self, said, later=(), pause=0.0, endless=False):
        self.said, self.later, self.pause, self.endless = stamped(said), stamped(later, len(said)), pause, endless
        self.state, self.spec = "Running", {}

    async def answer(self, request):
        if request.path.split("/")[-1] != "log":
            return objects(request, self.state, pods=1, **self.spec)
        assert "tailLines" not in request.query, "which counts lines of all ranks"
        response = web.StreamResponse()
        await response.prepare(request)
        after = request.query.get("sinceTime", "").encode()
        await response.write(b"".join(line for line in self.said if line.split()[0] >= after))
        if "follow" in request.query:
            for line in self.later:
                await asyncio.sleep(self.pause)
                await response.write(line)
            if self.endless:
                await asyncio.Event().wait()
        return response


async def said(torchyard, kubelet, *words):
    async with cluster(torchyard, kubelet.answer):
        done = await asyncio.to_thread(torchyard, "logs", "cvrp", *words, "-n", "team")
    assert done.returncode == 0, done.stderr
    return [line.removeprefix("[").replace(" cvrp-0-0]", "") for line in done.stdout.splitlines()]


@pytest.mark.parametrize("follow", [(), ("-f",)], ids=["once", "followed"])
async def test_the_last_lines_are_counted_for_each_rank(torchyard, follow):
    kubelet = Kubelet(SAID)
    kubelet.state = "Succeeded"
    newest = ["r1 line 99", "r0 line 108", "r0 line 109", "r1 line 110", "agent all workers have ended"]
    assert await said(torchyard, kubelet, "--tail", 2, *follow) == newest
    assert await said(torchyard, kubelet, "--tail", 1, "--rank", 1, *follow) == ["r1 line 110"]
    assert await said(torchyard, kubelet, "--tail", 0, *follow) == []


async def test_what_is_said_later_follows_the_last_lines_once(torchyard):
    kubelet = Kubelet(SAID, later=["[rank 1] more", "[rank 0] the end"])
    kubelet.state = "Succeeded"
    shown = await said(torchyard, kubelet, "-f", "--tail", 1)
    assert shown == ["r0 line 109", "r1 line 110", "agent all workers have ended", "r1 more", "r0 the end"]


async def test_a_log_that_takes_longer_than_its_job_is_shown_to_its_end(torchyard):
    kubelet = Kubelet([], later=[f"[rank 0] line {number}" for number in range(8)], pause=0.9)
    kubelet.state = "Succeeded"
    assert len(await said(torchyard, kubelet, "-f")) == 8


class Hurried(Kubelet):
    """Its streams end before what was said last."""

    async def answer(self, request):
        whole = self.said
        if "follow" in request.query:
            self.said = whole[:-2]
        try:
            return await super().answer(request)
        finally:
            self.said = whole


@pytest.mark.parametrize("count", [2, 5])
async def test_lines_that_a_stream_leaves_out_at_the_end_of_a_job_are_shown_once(torchyard, count):
    kubelet = Hurried([f"[rank 0] line {number}" for number in range(count)])
    kubelet.state = "Succeeded"
    assert await said(torchyard, kubelet, "-f") == [f"r0 line {number}" for number in range(count)]


async def test_a_closed_pipe_ends_a_command_that_follows_a_running_job(torchyard):
    kubelet = Kubelet([], later=["[rank 0] again"] * 1000, pause=0.1, endless=True)
    async with cluster(torchyard, kubelet.answer):
        process = torchyard.start("logs", "cvrp", "-f", "-n", "team")
        try:
            assert await asyncio.to_thread(process.stdout.readline) == "[r0 cvrp-0-0] again\n"
            process.stdout.close()
            assert await asyncio.to_thread(process.wait, 20) == 141
            assert process.stderr.read() == ""
        finally:
            process.kill()
            process.wait()
            process.stderr.close()


async def test_a_pod_without_an_agent_has_no_ranks_and_no_lines_of_an_agent(torchyard):
    kubelet = Kubelet(["step 1"])
    kubelet.spec = {"launcher": {"kind": "none"}, "command": ["torchrun", "train.py"], "trainer": None}
    assert await said(torchyard, kubelet) == ["cvrp-0-0] step 1"]
    async with cluster(torchyard, kubelet.answer):
        refused = await asyncio.to_thread(torchyard, "logs", "cvrp", "--rank", 0, "-n", "team")
    assert refused.returncode == 64
    assert "has no agent" in refused.stderr
    assert "leave --rank out" in refused.stderr


class Watched(Kubelet):
    """A job that is created, trains, and is over once its log was read."""

    def __init__(self, said, later=(), *, forbidden=False):
        super().__init__(said, later, pause=0.1)
        self.forbidden = forbidden
        self.read = asyncio.Event()

    async def answer(self, request):
        last = request.path.rpartition("/")[2]
        if last == "log" and not self.forbidden:
            response = await super().answer(request)
            self.read.set()
            self.state = "Succeeded"
            return response
        if last == "log":
            self.read.set()
            self.state = "Succeeded"
            forbidden = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "pods/log is forbidden"}
            return web.json_response(forbidden, status=403)
        if last == "events":
            return web.json_response({"items": []})
        if last != "trainingjobs":
            return objects(request, self.state, pods=1, **self.spec)
        if request.method == "POST":
            return web.json_response(self.job("Running"), status=201)
        if "watch" not in request.query:
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": [self.job("Running")]})
        response = web.StreamResponse()
        await response.prepare(request)
        await self.read.wait()
        event = {"type": "MODIFIED", "object": self.job("Succeeded")}
        await response.write(json.dumps(event).encode() + b"\n")
        await asyncio.Event().wait()
        return response

    def job(self, state):
        metadata = {**JOB["metadata"], "resourceVersion": "1"}
        return {**JOB, "metadata": metadata, "spec": {**JOB["spec"], **self.spec}, "status": {"state": state}}


async def watched(torchyard, server, *words):
    (torchyard.folder / "job.json").write_text(json.dumps({**JOB, "metadata": {"name": "cvrp"}}))
    async with cluster(torchyard, server.answer):
        return await asyncio.to_thread(torchyard, "submit", "job.json", "--watch", *words, "-n", "team")


@pytest.mark.parametrize("spec", [{}, {"nodes": 1, "procsPerNode": 1}], ids=["several ranks", "one rank"])
async def test_a_watched_submission_shows_what_the_program_writes_as_run_does(torchyard, spec):
    server = Watched(["[rank 0] first", "agent's own"], later=["[rank 0] last"])
    server.spec = spec
    done = await watched(torchyard, server)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == (["first", "last"] if spec else ["[rank 0] first", "[rank 0] last"])
    assert "cvrp succeeded" in done.stderr


async def test_a_quiet_watch_shows_no_output_and_with_json_it_goes_to_stderr(torchyard):
    quiet = Watched([])
    quiet.read.set()
    assert (await watched(torchyard, quiet, "-q")).stdout == ""
    done = await watched(torchyard, Watched(["[rank 0] first"]), "-o", "json")
    assert json.loads(done.stdout)["metadata"]["name"] == "cvrp"
    assert "[rank 0] first" in done.stderr


async def test_a_watch_without_the_right_to_read_logs_warns_once_and_continues(torchyard):
    done = await watched(torchyard, Watched([], forbidden=True))
    assert done.returncode == 0
    assert done.stderr.count("the output of the program cannot be shown: pods/log is forbidden") == 1
    assert "cvrp succeeded" in done.stderr
