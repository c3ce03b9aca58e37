"""`torchyard profile` against a cluster: an API server that lists a job and its pods, and runs commands in folders."""

import asyncio
import json

import pytest
from aiohttp import web
from tests.support.cli.cluster import cluster, objects

from torchyard.kubernetes.manifests import names

WELL = b"\x03" + json.dumps({"status": "Success"}).encode()


class Pods:
    """The run folders of two pods, and a command line that knows no other place."""

    def __init__(self, torchyard):
        self.folder, self.torchyard = torchyard.folder, torchyard
        self.runs = [self.folder / f"cvrp-0-{number}" for number in range(2)]
        for run in self.runs:
            run.mkdir()

    async def answer(self, request):
        parts = request.path.split("/")
        if parts[-1] == "exec":
            return await self.execute(request, self.folder / parts[-2])
        return objects(request)

    async def execute(self, request, run):
        words = [word.replace(names.RUN, str(run)) for word in request.query.getall("command")]
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io",))
        await socket.prepare(request)
        process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
        output, _ = await process.communicate()
        assert process.returncode == 0
        for message in (b"\x01" + output, WELL):
            await socket.send_bytes(message)
        await socket.close()
        return socket

    async def __call__(self, *words):
        return await asyncio.to_thread(self.torchyard, "profile", "cvrp", *words, "-n", "team")

    @property
    def wishes(self):
        return [json.loads((run / "profile.json").read_text()) for run in self.runs]


@pytest.fixture
async def pods(torchyard):
    made = Pods(torchyard)
    async with cluster(torchyard, made.answer):
        yield made


async def test_a_rank_that_is_not_there_is_refused_and_no_pod_is_touched(pods):
    refused = await pods("trace", "--rank", 7)
    says = "--rank 7 is not possible: 'cvrp' has 2 ranks; ask for 0 to 1"
    assert (refused.returncode, says in refused.stderr) == (64, True), refused.stderr
    assert not any(list(run.iterdir()) for run in pods.runs)


async def test_a_wish_waits_for_the_one_before_in_every_pod_or_replaces_it(pods):
    asked = await pods("trace")
    assert (asked.returncode, "asked 2 pods of cvrp for trace" in asked.stdout) == (0, True), asked.stderr
    assert "`torchyard fetch cvrp profile -n team`" in asked.stdout
    traced = pods.wishes
    (pods.runs[0] / "profiled.0").write_text(traced[0]["id"])
    refused = await pods("memory")
    says = "a trace profile of 3 steps is still wished for of 'cvrp'"
    assert (refused.returncode, says in refused.stderr) == (1, True), refused.stderr
    assert "`torchyard fetch cvrp profile -n team`" in refused.stderr
    assert pods.wishes == traced
    assert (await pods("memory", "--replace")).returncode == 0
    assert [wish["kind"] for wish in pods.wishes] == ["memory"] * 2
    for rank, run in enumerate(pods.runs):
        (run / f"profiled.{rank}").write_text(pods.wishes[rank]["id"])
    assert (await pods("trace")).returncode == 0
