"""What schedulers, nodes and impatient people do to a gang, on a node that is only played."""

import secrets
from collections.abc import Iterable

import pytest
from tests.cluster.plans.kubelet import STRATEGIC_PATCH, node, placement
from tests.cluster.plans.lane import Lane, lane
from tests.support.cluster.operators import until

from torchyard.kubernetes.client.api import Api
from torchyard.reconcile.ports import Unavailable

GANG = {"command": ["torchrun", "train.py"], "nodes": 2, "gracePeriod": "1s"}
LARGE = {"resources": {"memory": "400Gi"}}  # of which the node holds two
FLAPS = 2


@pytest.fixture
async def played(api, certificates, tmp_path):
    """A namespace, its operator and a node of 1 TiB, as if there were agents in its pods."""
    name = f"ty-played-{secrets.token_hex(3)}"
    async with node(api, name) as heart, lane(api, name, certificates, tmp_path) as one:
        one.heart = heart
        yield one


@pytest.fixture
async def priority(api):
    """Two priority classes, the lower one first."""
    path, name = "/apis/scheduling.k8s.io/v1/priorityclasses", f"ty-{secrets.token_hex(3)}"
    classes = {f"{name}-low": 1, f"{name}-high": 1000}
    for each, value in classes.items():
        await api.request("POST", path, body={"metadata": {"name": each}, "value": value})
    yield tuple(classes)
    for each in classes:
        await api.request("DELETE", f"{path}/{each}", body={})


async def test_a_gang_that_is_preempted_restarts_as_one_and_pays_nothing(played, priority):
    jobs, (low, high) = played.jobs, priority
    await jobs.submit("low", **GANG, **LARGE, scheduling=_there(played, priorityClass=low))
    await _trains(played, "low", 1)
    urgent = {**GANG, **LARGE, "nodes": 1}
    await jobs.submit("high", **urgent, scheduling=_there(played, priorityClass=high))
    status = await jobs.until("low", lambda now: now["state"] == "Recovering")
    (attempt,) = status["attempts"]
    assert (attempt["reason"], attempt.get("counted", False)) == ("PreemptedByPriority", False)
    status = await jobs.until("low", lambda now: now["reason"] == "InsufficientMemory")
    assert status["state"] == "Recovering"
    await _trains(played, "high", 1)
    await _finish(played, "high")
    await jobs.ends("high")
    await _trains(played, "low", 2)
    assert (await jobs.status("low"))["restarts"].get("counted", 0) == 0


async def test_a_gang_that_does_not_fit_fails_at_its_pending_timeout(played):
    limit = {"pendingTimeout": "8s"}
    partial = {**GANG, **LARGE, "nodes": 3}
    await played.jobs.submit("partial", **partial, health=limit, scheduling=_there(played))
    status = await played.jobs.until("partial", lambda now: now["reason"] == "ClusterTooSmall")
    assert status["state"] == "Pending"
    assert "it needs 1,200.0 GiB (3 pods x 400.0 GiB), the 1 node it may use has 1,024.0 GiB" in status["message"]
    await played.jobs.submit("next", **GANG, **LARGE, scheduling=_there(played))
    status = await played.jobs.ends("partial")
    assert (status["state"], status["reason"]) == ("Failed", "PendingTimeout")
    assert "ClusterTooSmall" in status["message"]
    await _trains(played, "next", 1)


async def test_two_gangs_that_block_each_other_both_train(played):
    """Of 1,024 GiB a third job takes 250 until each of them has one pod; then neither has room for its second one."""
    gangs = {"wide": "400Gi", "slim": "370Gi"}
    scheduling = _there(played, gangTimeout="8s")
    await played.jobs.submit("third", **{**GANG, "nodes": 1}, resources={"memory": "250Gi"}, scheduling=scheduling)
    await _trains(played, "third", 1)
    for name, memory in gangs.items():
        await played.jobs.submit(name, **GANG, resources={"memory": memory}, scheduling=scheduling)
        await played.jobs.until(name, lambda now: now["reason"] == "InsufficientMemory")
    await _finish(played, "third")
    await played.jobs.ends("third")
    first = await _one_that_trains(played, gangs)
    (second,) = gangs.keys() - {first}
    (said, *_) = await played.jobs.announced(second, "GangIncomplete")
    assert f"1 of 2 pods for 8s, InsufficientMemory: it needs {2 * int(gangs[second][:-2])}.0 GiB (2 pods x" in said
    for name in (first, second):
        await _trains(played, name, 1)
        await _finish(played, name)
        status = await played.jobs.ends(name)
        assert (status["state"], status.get("restarts", {}).get("total", 0)) == ("Succeeded", 0)
        assert "releases" not in status["rendezvous"]
    assert played.kubelet.overlaps == {}


async def test_a_node_that_comes_and_goes_restarts_nothing(played):
    await played.jobs.submit("job", **GANG, scheduling=_there(played))
    await _trains(played, "job", 1)
    before = set(await played.jobs.pods("job"))
    for _ in range(FLAPS):
        await _flap(played)
    await played.jobs.edit("job", activeDeadline="1h")
    status = await played.jobs.until("job", lambda now: now["observedGeneration"] == 2)
    assert (status["round"], status.get("restarts", {}).get("total", 0)) == (1, 0)
    assert set(await played.jobs.pods("job")) == before


async def test_an_eviction_that_a_disruption_budget_refuses_disturbs_nothing(played, api):
    await played.jobs.submit("job", **GANG, scheduling=_there(played))
    await _trains(played, "job", 1)
    path = f"/apis/policy/v1/namespaces/{played.jobs.namespace}/poddisruptionbudgets"
    spec = {"maxUnavailable": 0, "selector": {"matchLabels": {"torchyard.dev/job": "job"}}}
    await api.request("POST", path, body={"metadata": {"name": "keep"}, "spec": spec})
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "job-0-1"}}
    once = Api(api.session, api.credentials)  # which does not ask again
    with pytest.raises(Unavailable, match="disruption budget"):
        await once.request("POST", f"{played.jobs.core}/pods/job-0-1/eviction", body=eviction)
    status = await played.jobs.status("job")
    assert (status["state"], status["round"]) == ("Running", 1)


async def test_a_hundred_edits_in_a_row_end_with_the_last_one(played):
    await played.jobs.submit("job", **GANG, scheduling=_there(played))
    await _trains(played, "job", 1)
    for number in range(100):
        await played.jobs.edit("job", suspend=number % 2 == 0, activeDeadline=f"{number + 1}h")
    status = await played.jobs.until("job", lambda now: now["observedGeneration"] == 101)
    await _trains(played, "job", None)
    status = await played.jobs.status("job")
    assert status.get("restarts", {}).get("total", 0) == 0
    assert sum("deletionTimestamp" not in pod["metadata"] for pod in (await played.jobs.pods("job")).values()) == 2
    assert played.kubelet.overlaps == {}


def _there(played: Lane, **more) -> dict:
    return {**placement(played.kubelet.node), **more}


async def _trains(played: Lane, job: str, number: int | None) -> None:
    """The newest round, or the one of this number, is under way."""
    await played.jobs.until(job, lambda now: now.get("state") == "Running" and number in {None, now["round"]})


async def _one_that_trains(played: Lane, jobs: Iterable[str]) -> str:
    found: list[str] = []

    async def trains() -> bool:
        found[:] = [job for job in jobs if (await played.jobs.status(job)).get("state") == "Running"]
        return bool(found)

    await until(trains, why=lambda: "none of them trains")
    return found[0]


async def _finish(played: Lane, job: str) -> None:
    """Once the workers of all its pods run, they are done."""
    agents = [each.agent for each in played.kubelet.containers.values() if each.job == job and each.agent is not None]
    await until(lambda: all(agent.trains for agent in agents), why=lambda: f"{job}: not all of them train")
    for agent in agents:
        agent.finish(0)


async def _flap(played: Lane) -> None:
    """It is not ready until the operator has seen so, and then ready again."""
    seen = len(played.requests)
    await _say(played, well=False)
    await until(lambda: _looked_at(played, seen), why=lambda: "the operator did not look at the node")
    await _say(played, well=True)


async def _say(played: Lane, *, well: bool) -> None:
    """Set whether it reports itself as ready, and wait for what the control plane writes on its pods."""
    played.heart.well = well
    await played.heart.beat()
    body = {"status": {"conditions": [{"type": "Ready", "status": "True" if well else "False"}]}}
    for name in list(played.kubelet.containers):
        path = f"{played.jobs.core}/pods/{name}/status"
        await played.jobs.api.request("PATCH", path, body=body, content_type=STRATEGIC_PATCH)


async def _looked_at(played: Lane, since: int) -> bool:
    path = f"/api/v1/nodes/{played.kubelet.node}"
    return any(each.path == path for each in played.requests[since:])
