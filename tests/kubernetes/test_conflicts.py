"""A 409 to a deletion does not say what became of the object: an admission plug-in may have said it, too."""

import msgspec
import pytest
from aiohttp import web
from msgspec.structs import replace
from tests.support.kubernetes.api_server import refused, talking
from tests.support.kubernetes.pod_json import container, ended, placed, pod, text

from torchyard.api.resource import TrainingJob
from torchyard.kubernetes.cache.jobs import Jobs
from torchyard.kubernetes.cluster import KubeCluster
from torchyard.kubernetes.manifests.names import Site
from torchyard.reconcile.actions import DeletePod
from torchyard.reconcile.ports import Conflict

SITE = Site(operator_url="https://127.0.0.1:1", ca_pem="x", agent_image="agent", trainer_image="trainer")
JOB = {
    "apiVersion": "torchyard.dev/v1alpha1",
    "kind": "TrainingJob",
    "metadata": {"name": "cvrp", "namespace": "team", "uid": "job-uid", "resourceVersion": "800"},
    "spec": {"command": ["true"]},
    "status": {"rendezvous": {"members": ["6c1d1a63-6f0c-4f53-9a5e-0a3f1c1c0001"]}},
}
POD = pod(status=placed(container("running"), phase="Running"))
AWAY = DeletePod(uid=POD["metadata"]["uid"], name=POD["metadata"]["name"], grace_seconds=5.0, why="a test")
ANOTHER = {"uid": "another", "resourceVersion": "900"}


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Run with a cluster that knows the job and its pod, on a server that has this object and denies its deletion."""

    async def run(there, work):
        deletions = []

        async def answer(request):
            if request.method == "DELETE":
                deletions.append((await request.json())["preconditions"])
                return refused(409, "Conflict", "the object has been modified")
            if there is None:
                kind = request.path.split("/")[-2]
                return refused(404, "NotFound", details={"name": request.path.rsplit("/", 1)[-1], "kind": kind})
            return web.json_response(there)

        async with talking(tmp_path, answer, monkeypatch) as api:
            jobs = Jobs()
            jobs.put(text(JOB))
            one = KubeCluster(api, jobs, SITE)
            one.tracked.put("team", text(POD))
            one.deletions = deletions
            return await work(one, msgspec.convert(JOB, TrainingJob))

    return run


async def test_a_pod_that_is_still_there_is_not_forgotten(cluster):
    async def work(one, job):
        with pytest.raises(Conflict):
            await one.delete_pod(job, AWAY)
        (known,) = one.pods("job-uid")
        assert known.alive

    await cluster(POD, work)


async def test_a_pod_that_ended_unseen_is_not_deleted_where_its_logs_are_worth_more(cluster):
    """What a job left behind is deleted only as it was seen; a watch may have stood still."""
    over = pod(status=ended(1))
    over["metadata"]["resourceVersion"] = "900"

    async def work(one, job):
        with pytest.raises(Conflict):
            await one.delete_pod(job, replace(AWAY, if_alive=True))
        assert one.deletions == [{"uid": AWAY.uid, "resourceVersion": POD["metadata"]["resourceVersion"]}]
        (known,) = one.pods("job-uid")
        assert (known.alive, known.deleting) == (False, False)

    await cluster(over, work)


@pytest.mark.parametrize("there", [None, POD | {"metadata": POD["metadata"] | ANOTHER}], ids=["none", "another"])
async def test_a_pod_whose_name_is_free_or_anothers_is_gone(cluster, there):
    async def work(one, job):
        await one.delete_pod(job, AWAY)
        assert [each.uid for each in one.pods("job-uid") if each.alive] == []

    await cluster(there, work)


async def test_a_job_that_is_still_there_is_not_forgotten(cluster):
    async def work(one, job):
        with pytest.raises(Conflict):
            await one.delete_job(job)
        assert one.job(job.key) is not None

    await cluster(JOB, work)


@pytest.mark.parametrize(
    ("there", "uid"),
    [(None, None), (JOB | {"metadata": JOB["metadata"] | ANOTHER}, "another")],
    ids=["none", "another"],
)
async def test_a_job_whose_name_is_free_or_anothers_is_gone(cluster, there, uid):
    async def work(one, job):
        await one.delete_job(job)
        now = one.job(job.key)
        assert (now and now.metadata.uid) == uid

    await cluster(there, work)
