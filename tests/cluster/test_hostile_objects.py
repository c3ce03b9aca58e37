"""A hundred malformed or hostile objects beside honest jobs: none stops the operator, none affects another job."""

import asyncio
import json

import pytest
from tests.support.cluster.hostile import NOWHERE, objects
from tests.support.cluster.operators import until

from torchyard.kubernetes.client.api import MERGE_PATCH, Api
from torchyard.kubernetes.client.errors import Conflict, NotFound, Rejected
from torchyard.reconcile.ports import Unavailable

HONEST = {
    "apiVersion": "torchyard.dev/v1alpha1",
    "kind": "TrainingJob",
    "spec": {"script": "1", "nodes": 2, "scheduling": NOWHERE},
}
OVER_BY_THEIR_WORD = {"status: success", "status: a finished job that runs"}


@pytest.fixture
def jobs(namespace):
    return f"/apis/torchyard.dev/v1alpha1/namespaces/{namespace}/trainingjobs"


@pytest.fixture
def pods(namespace):
    return f"/api/v1/namespaces/{namespace}/pods"


async def read(api, path):
    return json.loads(await api.request("GET", path))


async def honest(api, jobs, pods, name):
    """An honest job and the uids of its two pods, once it has them."""
    await api.request("POST", jobs, body={**HONEST, "metadata": {"name": name}})
    await until(lambda: _pods_of(api, pods, name, 2), why=lambda: f"{name} got no pods")
    return await read(api, f"{jobs}/{name}"), await uids(api, pods, name)


async def uids(api, pods, name):
    items = (await read(api, pods))["items"]
    owned = [pod for pod in items if pod["metadata"]["labels"].get("torchyard.dev/job") == name]
    return sorted(pod["metadata"]["uid"] for pod in owned if not pod["metadata"].get("deletionTimestamp"))


async def _pods_of(api, pods, name, number):
    return len(await uids(api, pods, name)) == number


async def post(api, jobs, hostile):
    """The object as kept; None where the API server refuses it, for a few by breaking the connection."""
    if hostile.refused:
        api = Api(api.session, api.credentials)  # which does not ask again
    try:
        kept = json.loads(await api.request("POST", jobs, body=hostile.body))
        if hostile.status is not None:
            path = f"{jobs}/{kept['metadata']['name']}/status"
            await api.request("PATCH", path, body={"status": hostile.status}, content_type=MERGE_PATCH)
    except (Rejected, NotFound, Conflict, Unavailable):
        return None
    return kept


async def unseen(api, jobs, names):
    """Return the jobs that the operator has not visited since they were created."""
    items = {job["metadata"]["name"]: job for job in (await read(api, jobs))["items"]}
    return [name for name in names if name in items and not _looked_at(items[name])]


def _looked_at(job):
    conditions = job.get("status", {}).get("conditions", [])
    known = {condition["type"] for condition in conditions if "observedGeneration" in condition}
    return {"Complete", "Failed", "Stalled"} <= known or any(
        condition["type"] == "Stalled" and condition["status"] == "True" for condition in conditions
    )


async def test_none_of_a_hundred_stops_the_operator_or_affects_another_job(api, jobs, pods, operator):
    squatted = {"metadata": {"name": "squat-0-0", "labels": {"torchyard.dev/job": "squat"}}, "spec": _pod_spec()}
    await api.request("POST", pods, body=squatted)
    victim, victims_pods = await honest(api, jobs, pods, "victim")
    hundred = objects(victim, victims_pods)
    assert len(hundred) >= 100
    await api.request("POST", jobs, body={**HONEST, "metadata": {"name": "squat"}})
    answers = await asyncio.gather(*(post(api, jobs, hostile) for hostile in hundred))
    kept = {hostile.name: job for hostile, job in zip(hundred, answers, strict=True) if job is not None}
    refused = {hostile.name for hostile in hundred} - set(kept)
    assert refused == {hostile.name for hostile in hundred if hostile.refused}
    # A job whose owner says in its status that it is over is over: nobody looks at it again.
    names = [job["metadata"]["name"] for name, job in kept.items() if name not in OVER_BY_THEIR_WORD]

    async def settled():
        assert operator.process.poll() is None, operator.log.read_text()[-3000:]
        return not await unseen(api, jobs, names)

    await until(settled, why=lambda: operator.log.read_text()[-3000:])
    _, latecomers = await honest(api, jobs, pods, "latecomer")
    assert len(latecomers) == 2
    await until(operator.leads, why=lambda: operator.log.read_text()[-3000:])
    assert await uids(api, pods, "victim") == victims_pods
    after = await read(api, f"{jobs}/victim")
    assert (after["metadata"]["generation"], after["status"]["state"]) == (1, "Pending")
    assert after["status"].get("round", 0) == 0
    squatter = await read(api, f"{pods}/squat-0-0")
    assert "deletionTimestamp" not in squatter["metadata"]
    await until(lambda: _pods_of(api, pods, "squat", 3))  # the squatter's, and two of other names
    for job in kept.values():  # a finalizer of nobody's would keep the namespace for ever
        if job["metadata"].get("finalizers"):
            body = {"metadata": {"finalizers": None}}
            await api.request("PATCH", f"{jobs}/{job['metadata']['name']}", body=body, content_type=MERGE_PATCH)


def _pod_spec():
    secure = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {
        "containers": [{"name": "a", "image": "example.com/none:1", "securityContext": secure}],
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "nodeSelector": NOWHERE["nodeSelector"],
    }
