"""`torchyard curves` and `logs`: what a job has logged, also after its pods are gone."""

import asyncio
import json

import pytest
from aiohttp import web
from tests.cli.test_fetch_from_pods import Pods
from tests.support.cli.cluster import JOB, cluster

from torchyard.api.curves import with_points
from torchyard.api.resource import status_document
from torchyard.api.status import Attempt, Cause, TrainingJobStatus


def rows(first, end):
    return "".join(json.dumps({"step": step, "loss": 100 - step}) + "\n" for step in range(first, end))


@pytest.fixture
def pods(tmp_path):
    made = Pods(tmp_path / "pods")
    made.write("cvrp-0-0", "metrics.jsonl", rows(0, 50) + '{"step": 50, "lo')
    return made


async def curves(torchyard, answer, *words):
    async with cluster(torchyard, answer):
        return await asyncio.to_thread(torchyard, "curves", "cvrp", *words, "-n", "team")


def without_pods(status=None):
    async def answer(request):
        if request.path.endswith("/pods"):
            return web.json_response({"kind": "PodList", "items": []})
        return web.json_response({**JOB, "status": status or {"state": "Succeeded"}})

    return answer


def read(done):
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return found["source"], found["metrics"]["loss"]["mean"]


async def test_each_reading_continues_where_the_last_one_ended(torchyard, pods):
    assert read(await curves(torchyard, pods.answer, "-o", "json")) == ("files", [float(v) for v in range(100, 50, -1)])
    (copy,) = (torchyard.home / "cache" / "curves").glob("*/metrics.jsonl")
    kept = copy.stat().st_ino
    path = pods.folder / "cvrp-0-0" / "cvrp" / "metrics.jsonl"
    path.write_text(rows(0, 60))
    assert read(await curves(torchyard, pods.answer, "-o", "json"))[1][-1] == 41
    assert (copy.stat().st_ino, copy.read_text()) == (kept, rows(0, 60))
    path.write_text(rows(5, 7))  # of another pod
    assert read(await curves(torchyard, pods.answer, "-o", "json"))[1] == [95, 94]
    assert read(await curves(torchyard, without_pods(), "-o", "json")) == ("copy", [95, 94])


async def test_without_pods_and_copy_the_status_is_drawn_and_named(torchyard):
    kept = {}
    for step in range(1, 200):
        kept = with_points(kept, step, {"loss": 1 / step, "gradNorm": float("nan")}, 1)
    status = {"state": "Succeeded", **status_document(TrainingJobStatus(curves=kept))}
    done = await curves(torchyard, without_pods(status))
    assert "loss  lowest 0.005" in done.stdout
    assert "199 of 199 points not finite" in done.stdout
    assert "extremes between are missing (no pod runs)" in done.stderr
    refused = await curves(torchyard, without_pods(status), "cost")
    assert (refused.returncode, "it has gradNorm, loss" in refused.stderr) == (64, True)


async def test_a_pod_that_answers_something_else_does_not_change_the_copy(torchyard, pods):
    await curves(torchyard, pods.answer)

    async def answer(request):
        if not request.path.endswith("/exec"):
            return await pods.answer(request)
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io",))
        await socket.prepare(request)
        await socket.send_bytes(b"\x01" + b"7\n" + rows(0, 3).encode())
        await socket.close()
        return socket

    done = await curves(torchyard, answer, "-o", "json")
    assert read(done)[0] == "copy"
    assert len(read(done)[1]) == 50
    assert "a pod answers something else than metrics" in json.loads(done.stdout)["sentence"]


async def test_the_last_lines_of_failed_rounds_outlive_their_pods(torchyard):
    def failed(number):
        cause = Cause(rank=number, pod=f"cvrp-{number}-0", lines=["Traceback", f"ValueError: {number}\x1b[2J"])
        return Attempt(round=number, cause=cause)

    status = {"state": "Failed", **status_document(TrainingJobStatus(attempts=[failed(1), failed(2)]))}
    async with cluster(torchyard, without_pods(status)):
        done = await asyncio.to_thread(torchyard, "logs", "cvrp", "--tail", 1, "-n", "team")
    assert done.stdout.splitlines() == [
        "[r1 cvrp-1-0 round 1] ValueError: 1",
        "[r2 cvrp-2-0 round 2] ValueError: 2",
    ]
    assert "no pod of it is left; these are the last lines" in done.stderr


def test_the_curves_of_a_run_are_those_of_its_files(torchyard):
    folder = torchyard.home / "runs" / "one"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "job.yaml").write_text(json.dumps({**JOB, "metadata": {"name": "one", "uid": "u"}}))
    nothing = torchyard("curves", "one")
    assert (nothing.returncode, "'one' has no metrics yet" in nothing.stderr) == (1, True)
    (folder / "checkpoints" / "metrics.jsonl").write_text(rows(0, 30))
    done = torchyard("curves", "one", "loss")
    assert "loss  lowest 71, highest 100, last 71" in done.stdout
    assert "one: every logged value" in done.stderr
