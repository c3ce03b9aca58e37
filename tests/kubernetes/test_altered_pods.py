"""Pods of which a mutating webhook has removed what they are recognized by: each would be created without end."""

import contextlib

import msgspec
import pytest
from aiohttp import web
from tests.support.kubernetes.api_server import talking

from torchyard.api.resource import TrainingJob
from torchyard.kubernetes.cache.jobs import Jobs
from torchyard.kubernetes.cluster import KubeCluster
from torchyard.kubernetes.manifests import names
from torchyard.kubernetes.manifests.names import Site
from torchyard.reconcile.actions import CreatePod
from torchyard.reconcile.ports import Refused

JOB = {
    "apiVersion": "torchyard.dev/v1alpha1",
    "kind": "TrainingJob",
    "metadata": {"name": "cvrp", "namespace": "team", "uid": "1-2-3"},
    "spec": {"command": ["true"], "nodes": 1},
}
SITE = Site(operator_url="https://x:1", ca_pem="x", agent_image="a", trainer_image="t")
FIRST = CreatePod(name="cvrp-0-0", index=0, incarnation=0)


def less(kind, name):
    """What a webhook returns that drops or changes one label or annotation."""
    return lambda metadata: metadata[kind].pop(name)


@contextlib.asynccontextmanager
async def admitted(folder, monkeypatch, change):
    """A cluster whose API server changes pods, and the requests that it got."""
    asked = []

    async def answer(request):
        body = await request.json()
        asked.append((request.method, request.path.rpartition("/")[2], body.get("preconditions")))
        if request.method == "POST":
            change(body["metadata"])
            body["metadata"] |= {"uid": "pod-uid", "resourceVersion": "1"}
        return web.json_response(body)

    async with talking(folder, answer, monkeypatch) as api:
        jobs = Jobs()
        yield KubeCluster(api, jobs, SITE), asked


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (less("labels", names.JOB_UID), "label torchyard.dev/job-uid"),
        (lambda metadata: metadata["labels"].update({names.JOB_UID: "4-5-6"}), "label torchyard.dev/job-uid"),
        (less("annotations", names.PROVENANCE), "annotation torchyard.dev/created-by"),
        (less("annotations", names.CONFIGURATION), "annotation torchyard.dev/configuration"),
        (lambda metadata: metadata.pop("ownerReferences"), "its owner"),
        (lambda metadata: metadata["ownerReferences"][0].update(controller=False), "its owner"),
    ],
)
async def test_a_pod_that_admission_has_altered_is_deleted_and_said_to_be(change, what, tmp_path, monkeypatch):
    async with admitted(tmp_path, monkeypatch, change) as (cluster, asked):
        with pytest.raises(Refused) as refused:
            await cluster.create_pod(msgspec.convert(JOB, TrainingJob), FIRST)
    assert (refused.value.reason, refused.value.message) == ("PodAltered", what)
    assert refused.value.retry_after >= 60
    assert asked == [("POST", "pods", None), ("DELETE", "cvrp-0-0", {"uid": "pod-uid"})]
    assert cluster.pods("1-2-3") == ()


async def test_what_sites_add_to_pods_is_welcome(tmp_path, monkeypatch):
    def add(metadata):
        metadata["labels"]["team"] = "vision"
        metadata["annotations"]["mesh.example.com/status"] = "injected"
        metadata["ownerReferences"].append({"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "7"})

    async with admitted(tmp_path, monkeypatch, add) as (cluster, asked):
        await cluster.create_pod(msgspec.convert(JOB, TrainingJob), FIRST)
        assert [each.name for each in cluster.pods("1-2-3")] == ["cvrp-0-0"]
    assert asked == [("POST", "pods", None)]
