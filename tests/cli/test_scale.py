"""`torchyard scale`: the number of nodes of an elastic job."""

import asyncio
import json

import pytest
from tests.support.cli.cluster import cluster, objects

ELASTIC = {"minNodes": 2, "maxNodes": 8}


@pytest.mark.parametrize(
    ("spec", "nodes", "code", "patched", "says"),
    [
        ({"elastic": ELASTIC}, 6, 0, 6, "cvrp: from 2 to 6 nodes; `torchyard status cvrp"),
        ({"elastic": ELASTIC}, 2, 0, None, "it already has nodes: 2"),
        ({"elastic": ELASTIC}, 9, 64, None, "not between elastic.minNodes 2 and elastic.maxNodes 8"),
        ({}, 4, 64, None, "cvrp is not elastic: it trains with all of its 2 nodes; `torchyard suspend cvrp"),
        ({"suspend": True}, 4, 0, 4, "from 2 to 4 nodes"),
        ({"suspend": True}, 0, 64, None, "use at least 1"),
    ],
)
async def test_a_number_in_bounds_is_set_and_any_other_explained(  # noqa: PLR0917 -- a table
    torchyard, spec, nodes, code, patched, says
):
    sent = []

    async def answer(request):
        if request.method == "PATCH":
            sent.append(await request.json())
            return objects(request, **spec | sent[-1]["spec"])
        return objects(request, **spec)

    async with cluster(torchyard, answer):
        done = await asyncio.to_thread(torchyard, "scale", "cvrp", "--nodes", str(nodes), "-n", "team", "-o", "json")
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert sent == ([{"spec": {"nodes": patched}}] if patched is not None else [])
    if code == 0:
        assert json.loads(done.stdout)["spec"]["nodes"] == nodes


async def test_a_job_that_is_over_has_no_size(torchyard):
    async def answer(request):
        return objects(request, "Succeeded", elastic=ELASTIC)

    async with cluster(torchyard, answer):
        done = await asyncio.to_thread(torchyard, "scale", "cvrp", "--nodes", "4", "-n", "team")
    assert (done.returncode, "cvrp has already succeeded" in done.stderr) == (64, True)
