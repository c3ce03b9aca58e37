"""`torchyard plan -n` and `submit --dry-run`: one answer, with the rights of the user, and nothing is created."""

import asyncio
import json

import pytest
from aiohttp import web
from tests.support.cli.cluster import JOB, cluster
from tests.support.kubernetes.api_server import refused

GPU = "nvidia.com/gpu"
FILE = """
apiVersion: torchyard.dev/v1alpha1
kind: TrainingJob
metadata: {name: mine}
spec:
  command: [python, train.py]
  image: example.com/train:1
  nodes: 2
  gpusPerNode: 8
  scheduling: {queue: research}
"""


RUNNING = {**JOB, "status": {"state": "Running", "progress": {"etaSeconds": 2400}}}


def node(name):
    status = {"allocatable": {GPU: "8"}, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": name}, "spec": {}, "status": status}


def holder():
    owner = {"apiVersion": JOB["apiVersion"], "kind": "TrainingJob", "name": "cvrp", "uid": "u-1", "controller": True}
    container = {"name": "trainer", "resources": {"requests": {GPU: "8"}}}
    return {
        "metadata": {"name": "cvrp-0-0", "namespace": "team", "uid": "p", "ownerReferences": [owner]},
        "spec": {"nodeName": "a", "containers": [container]},
        "status": {"phase": "Running"},
    }


class Server:
    """A cluster of two nodes, one of them in use, in which the user may read what `forbidden` does not hold."""

    def __init__(self, *forbidden, exists=False):
        self.forbidden, self.exists, self.written = forbidden, exists, []

    async def answer(self, request):
        path = request.path
        if request.method != "GET":
            return await self.write(request)
        if any(path.endswith(each) for each in self.forbidden):
            return refused(403, "Forbidden", f"{path} is forbidden: User jane cannot list resource")
        kueue = "/apis/kueue.x-k8s.io/v1beta2"
        jobs = "/apis/torchyard.dev/v1alpha1"
        quota = [{"flavors": [{"name": "x", "resources": [{"name": GPU, "nominalQuota": "16"}]}]}]
        spec = {"command": ["python", "train.py"]}
        mine = [{**JOB, "metadata": {**JOB["metadata"], "name": "mine"}, "spec": spec}] if self.exists else []
        collections = {
            "/api/v1/nodes": [node("a"), node("b")],
            "/api/v1/pods": [holder()],
            "/api/v1/namespaces/team/pods": [holder()],
            f"{jobs}/trainingjobs": [RUNNING, *mine],
            f"{jobs}/namespaces/team/trainingjobs": [RUNNING, *mine],
            "/api/v1/namespaces/team/resourcequotas": [],
        }
        objects = {
            f"{kueue}/namespaces/team/localqueues/research": {"spec": {"clusterQueue": "gpus"}},
            f"{kueue}/clusterqueues/gpus": {"spec": {"resourceGroups": quota}},
        }
        if path in collections:
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": collections[path]})
        return web.json_response(objects[path]) if path in objects else refused(404, "NotFound", f"{path} not found")

    async def write(self, request):
        self.written.append((request.method, request.query.get("dryRun")))
        if self.exists:
            return refused(409, "AlreadyExists", "exists", details={"name": "mine", "kind": "trainingjobs"})
        return web.json_response(await request.json())


async def asked(torchyard, server, *words):
    (torchyard.folder / "job.yaml").write_text(FILE)
    async with cluster(torchyard, server.answer):
        return await asyncio.to_thread(torchyard, *words)


@pytest.mark.parametrize("words", [("plan", "job.yaml"), ("submit", "job.yaml", "--dry-run")], ids=["plan", "submit"])
async def test_the_plan_answers_before_submission_and_creates_nothing(torchyard, words):
    server = Server()
    done = await asked(torchyard, server, *words, "-n", "team")
    assert done.returncode == 0, done.stderr
    assert server.written == [("POST", "All")]
    for line in (
        "mine in namespace team of context test",
        "fits now? Not now: it needs 16 GPUs (2 pods x 8 GPUs), free are at most 8 GPUs, on one node at most 8 GPUs.",
        "GPUs      8 GPUs: team/cvrp (TrainingJob, Running), ends in 40m by its forecast",
        "queue     research, ClusterQueue gpus, 0 Workloads wait in it",
        "quota     ClusterQueue gpus, nvidia.com/gpu: needs 16 GPUs, free 16 GPUs of 16 GPUs (fits)",
        "job       new: there is none of this name",
        "object    the API server accepts it (dry run)",
        "memory    only the step of a spec.trainer can be forecast",
    ):
        assert line in done.stdout, done.stdout


async def test_what_the_user_may_not_read_is_named(torchyard):
    server = Server("/api/v1/nodes", "/api/v1/pods", "v1alpha1/trainingjobs", "/clusterqueues/gpus")
    done = await asked(torchyard, server, "plan", "job.yaml", "-n", "team", "-o", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["cluster"]
    assert (found["fit"]["now"], found["fit"]["ever"]) == (None, None)
    assert [each["name"] for each in found["holders"]] == ["cvrp"], "of the own namespace, which may be read"
    assert found["queue"] == {"name": "research", "clusterQueue": "gpus", "waiting": None}
    notes = "\n".join(found["notes"])
    for part in ("nodes:", "pods of all namespaces:", "jobs of all namespaces:", "ClusterQueue gpus:"):
        assert f"{part} " in notes, notes


async def test_the_running_job_of_the_name_is_compared(torchyard):
    server = Server(exists=True)
    done = await asked(torchyard, server, "submit", "job.yaml", "--dry-run", "-n", "team", "-o", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["cluster"]
    changes = {each["field"]: each["effect"] for each in found["existing"]["changes"]}
    assert changes["spec.gpusPerNode"] == changes["spec.nodes"] == changes["spec.image"] == "suspend first"
    assert found["existing"]["restarts"]
    assert found["accepted"] is None


async def test_a_dry_run_has_nothing_to_watch(torchyard):
    done = await asked(torchyard, Server(), "submit", "job.yaml", "--dry-run", "--watch", "-n", "team")
    assert done.returncode == 64
    assert "leave one of them out" in done.stderr
