"""A gang that loses a node trains on, grows back and is scaled, with the real scheduler."""

import contextlib
import json

from tests.support.cluster.jobs import Jobs
from tests.support.cluster.operators import until
from tests.support.cluster.training import Training

from torchyard.kubernetes.client.api import MERGE_PATCH
from torchyard.kubernetes.client.errors import NotFound

ELASTIC = {"minNodes": 1, "maxNodes": 4, "wait": "5s", "patience": "5s", "cooldown": "5s"}


async def members(jobs: Jobs, count: int, *, after: int = 0) -> dict:
    """Return the status once a round of so many nodes, later than this one, makes steps."""

    def trains(status: dict) -> bool:
        assert status.get("state") != "Failed", status.get("message")
        open_now = len(status.get("rendezvous", {}).get("members", [])) == count
        return status.get("state") == "Running" and open_now and status.get("round", 0) > after

    return await jobs.until("job", trains)


async def label(api, nodes: list[str], name: str, value: str | None) -> None:
    for node in nodes:
        body = {"metadata": {"labels": {name: value}}}
        with contextlib.suppress(NotFound):  # one that another test has played
            await api.request("PATCH", f"/api/v1/nodes/{node}", body=body, content_type=MERGE_PATCH)


async def test_a_gang_that_loses_a_node_trains_on_grows_back_and_is_scaled(api, namespace, operator):
    """The nodes lose a label that the job asks for, so that a lost pod finds no place until they have it again."""
    jobs, mine = Jobs(api, namespace), f"test.torchyard.dev/{namespace}"
    listed = json.loads(await api.request("GET", "/api/v1/nodes"))["items"]
    nodes = [each["metadata"]["name"] for each in listed]
    await label(api, nodes, mine, "here")
    try:
        place = {"scheduling": {"nodeSelector": {mine: "here"}}}
        training = await Training(jobs, 3000, elastic=ELASTIC, **place).start()
        first = await members(jobs, 2)
        await training.gained()
        await label(api, nodes, mine, None)
        await jobs.lose("job", 1)
        alone = await members(jobs, 1, after=first["round"])
        assert "on 1 of 2 nodes" in (await jobs.until("job", lambda status: "on 1" in status["message"]))["message"]
        await label(api, nodes, mine, "here")
        both = await members(jobs, 2, after=alone["round"])
        assert both["attempts"][-2]["reason"] == "Resizing"
        assert both["attempts"][-1]["startStep"] == both["attempts"][-2]["endStep"], "no step is repeated"
        assert "from 1 to 2 nodes" in (await jobs.announced("job", "Resizing"))[-1]

        scale = {"spec": {"replicas": 1}}
        await api.request("PATCH", f"{jobs.path}/job/scale", body=scale, content_type=MERGE_PATCH)
        smaller = await members(jobs, 1, after=both["round"])
        assert (smaller["nodes"]["desired"], smaller["restarts"]["total"]) == (1, 1)
        shown = json.loads(await api.request("GET", f"{jobs.path}/job/scale"))["status"]
        assert shown == {"replicas": 1, "selector": "torchyard.dev/job=job"}

        async def one_pod() -> bool:
            return len(await jobs.pods("job")) == 1

        await until(one_pod, why=lambda: "the pod that is surplus stays")
    finally:
        await label(api, nodes, mine, None)
