"""`torchyard suspend` and `resume` against a cluster."""

import asyncio
import json

import pytest
from tests.support.cli.cluster import cluster, objects


@pytest.mark.parametrize(
    ("state", "code", "asked", "says"),
    [
        ("Running", 0, ["PATCH"], "saves and stops within 60s"),
        ("Suspended", 0, [], "is suspended already"),
        ("Succeeded", 0, [], "has already succeeded"),
        ("Failed", 1, [], "has already failed"),
    ],
)
async def test_only_what_is_not_over_is_suspended(torchyard, state, code, asked, says):
    changed = []

    async def answer(request):
        changed.extend([request.method] if request.method != "GET" else [])
        checkpoint = {"volume": {"claim": "runs"}}
        return objects(request, state, suspend=state == "Suspended", checkpoint=checkpoint)

    async with cluster(torchyard, answer):
        done = await asyncio.to_thread(torchyard, "suspend", "cvrp", "-n", "team", "-o", "json")
    assert (done.returncode, changed) == (code, asked), done.stderr
    assert f"cvrp in namespace team of context test {says}\n" == done.stderr
    assert json.loads(done.stdout)["metadata"]["name"] == "cvrp"


async def test_suspending_a_job_that_keeps_nothing_reports_it(torchyard):
    """Its checkpoints are on the disks of the pods that it gives up."""

    async def answer(request):
        return objects(request)

    async with cluster(torchyard, answer):
        done = await asyncio.to_thread(torchyard, "suspend", "cvrp", "-n", "team")
    assert done.returncode == 0
    assert "its checkpoints are lost with its pods; a resumed job starts at step 0" in done.stderr


@pytest.mark.parametrize(
    ("state", "code", "asked", "says"),
    [
        ("Suspended", 0, ["PATCH"], "continues"),
        ("Running", 0, [], "is not suspended"),
        ("Succeeded", 64, [], "has already succeeded"),
    ],
)
async def test_only_what_is_suspended_is_resumed(torchyard, state, code, asked, says):
    changed = []

    async def answer(request):
        changed.extend([request.method] if request.method != "GET" else [])
        return objects(request, state, suspend=state == "Suspended")

    async with cluster(torchyard, answer):
        done = await asyncio.to_thread(torchyard, "resume", "cvrp", "-n", "team")
    assert (done.returncode, changed) == (code, asked), done.stderr
    assert f"cvrp in namespace team of context test {says}; " in done.stderr


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ({}, "with checkpoint.resumeFrom: cvrp the new job continues from them"),
        ({"trainer": None, "command": ["torchrun", "train.py"]}, "cvrp-old-1 beside those of the new job"),
    ],
)
async def test_a_failed_job_names_where_its_files_stay(torchyard, program, says):
    """Only built-in workloads have `resumeFrom`."""

    async def answer(request):
        return objects(request, "Failed", checkpoint={"volume": {"claim": "runs"}}, **program)

    async with cluster(torchyard, answer):
        done = await asyncio.to_thread(torchyard, "resume", "cvrp", "-n", "team")
    assert f"submit it again to start over (its files are kept: {says})" in done.stderr
