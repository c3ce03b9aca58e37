"""The operator as a process, against a real API server: start, leadership, end, and objects that are no good."""

import json
import signal
import time

import pytest
from operators import until

from torchyard.cluster.kube.client import MERGE_PATCH
from torchyard.cluster.kube.errors import NotFound
from torchyard.engine.ports import Unavailable

CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/trainingjobs.torchyard.dev"
JOB = {
    "apiVersion": "torchyard.dev/v1alpha1",
    "kind": "TrainingJob",
    "metadata": {"name": "job"},
    "spec": {"command": ["torchrun", "train.py"], "nodes": 2},
}


@pytest.fixture
def jobs(namespace) -> str:
    return f"/apis/torchyard.dev/v1alpha1/namespaces/{namespace}/trainingjobs"


@pytest.fixture
def pods(namespace) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


async def listed(api, path) -> list[dict]:
    return json.loads(await api.request("GET", path))["items"]


async def state_of(api, jobs, name="job") -> str:
    return json.loads(await api.request("GET", f"{jobs}/{name}")).get("status", {}).get("state", "")


async def test_a_job_gets_its_pods(api, jobs, pods, operator):
    await api.request("POST", jobs, body=JOB)
    await until(lambda: _number(api, pods, 2), 10)
    created = await listed(api, pods)
    job = json.loads(await api.request("GET", f"{jobs}/job"))
    assert {pod["metadata"]["name"] for pod in created} == {"job-0-0", "job-0-1"}
    owners = [owner for pod in created for owner in pod["metadata"]["ownerReferences"]]
    assert {(owner["uid"], owner["controller"]) for owner in owners} == {(job["metadata"]["uid"], True)}
    assert job["status"]["state"] == "Pending"


async def _number(api, path, number) -> bool:
    return len(await listed(api, path)) == number


async def test_a_deleted_job_takes_its_pods_along_without_an_operator(api, jobs, pods, operator):
    await api.request("POST", jobs, body=JOB)
    await until(lambda: _number(api, pods, 2), 10)
    await operator.kill()
    await api.request("DELETE", f"{jobs}/job")
    with pytest.raises(NotFound):
        await api.request("GET", f"{jobs}/job")
    await until(lambda: _number(api, pods, 0), 40)


async def test_a_kind_that_is_not_served_for_a_while_is_not_the_end_of_its_jobs(api, jobs, pods, operator):
    unplaced = {**JOB["spec"], "scheduling": {"nodeSelector": {"torchyard.dev/nowhere": "true"}}}
    await api.request("POST", jobs, body={**JOB, "spec": unplaced})
    await until(lambda: _number(api, pods, 2), 10)
    try:
        await _serve(api, jobs, served=False)
        await api.request("DELETE", f"{pods}/job-0-1")
        await until(lambda: "are not served now" in operator.log.read_text(), 20)
    finally:
        await _serve(api, jobs, served=True)
    await until(lambda: _has_pods(api, pods, {"job-0-0", "job-1-1"}), 40)


async def _serve(api, jobs, *, served) -> None:
    resource = json.loads(await api.request("GET", CRD))
    versions = [{**each, "served": served} for each in resource["spec"]["versions"]]
    await api.request("PATCH", CRD, body={"spec": {"versions": versions}}, content_type=MERGE_PATCH)

    await until(lambda: _is_served(api, jobs, served), 20)


async def _is_served(api, jobs, served) -> bool:
    try:
        await api.request("GET", jobs)
    except NotFound:
        return not served
    except Unavailable:  # 429: its storage is being made anew
        return False
    return served


async def _has_pods(api, pods, names) -> bool:
    return {pod["metadata"]["name"] for pod in await listed(api, pods)} == names


async def test_a_second_process_is_ready_and_takes_over_within_15_seconds_of_a_kill(api, jobs, make_operator):
    one, two = make_operator(name="one"), make_operator(name="two")
    for each in (one, two):
        each.start()
    for each in (one, two):
        await each.ready()
    await until(lambda: _one_leads(one, two), 20)
    leader, standby = (one, two) if await one.leads() else (two, one)
    assert not await standby.leads()
    await leader.kill()
    killed = time.monotonic()
    await until(standby.leads, 20)
    assert time.monotonic() - killed <= 15
    await api.request("POST", jobs, body=JOB)
    await until(lambda: _is(api, jobs, "Pending"), 5)


async def _one_leads(*several) -> bool:
    return sum([await each.leads() for each in several]) == 1


async def _is(api, jobs, state) -> bool:
    return await state_of(api, jobs) == state


async def test_a_clean_stop_hands_over_at_once_and_writes_nothing_more(api, jobs, make_operator):
    one, two = make_operator(name="one"), make_operator(name="two")
    one.start()
    await one.ready()
    await until(one.leads, 20)
    two.start()
    await two.ready()
    await api.request("POST", jobs, body=JOB)
    await until(lambda: _is(api, jobs, "Pending"), 5)
    one.signal(signal.SIGTERM)
    asked = time.monotonic()
    await until(two.leads, 10)
    assert time.monotonic() - asked <= 5
    assert await one.ended() == 0
    assert await state_of(api, jobs) == "Pending"


async def test_a_stopped_leader_that_wakes_up_writes_nothing_and_ends(api, jobs, namespace, make_operator):
    one, two = make_operator(name="one"), make_operator(name="two")
    one.start()
    await until(one.leads, 30)
    two.start()
    await two.ready()
    one.signal(signal.SIGSTOP)
    await until(two.leads, 20)
    # News that the first one finds when it wakes up; nothing happens to it any more once its pods have found no node.
    unplaced = {**JOB["spec"], "scheduling": {"nodeSelector": {"torchyard.dev/nowhere": "true"}}}
    await api.request("POST", jobs, body={**JOB, "spec": unplaced})
    await until(lambda: _because(api, jobs, "NoMatchingNode"), 15)
    before = await _versions(api, jobs, namespace)
    one.signal(signal.SIGCONT)
    assert await one.ended() == 1
    assert "holds the lease that was" in one.log.read_text()
    assert await _versions(api, jobs, namespace) == before
    assert await two.leads()


async def _because(api, jobs, reason) -> bool:
    return json.loads(await api.request("GET", f"{jobs}/job")).get("status", {}).get("reason") == reason


async def _versions(api, jobs, namespace) -> list:
    pods = await listed(api, f"/api/v1/namespaces/{namespace}/pods")
    return [await _version(api, f"{jobs}/job"), sorted(pod["metadata"]["uid"] for pod in pods)]


async def _version(api, path) -> str:
    return json.loads(await api.request("GET", path))["metadata"]["resourceVersion"]
