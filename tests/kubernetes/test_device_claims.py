"""Devices by claims (DRA): the pod, the number of GPUs from a template, and what the agent is sent of it."""

import pytest
from tests.kubernetes.test_manifest import SITE, built, env
from tests.support.kubernetes.object_server import ObjectServer

from torchyard.api.resource import read_job
from torchyard.kubernetes.claim_gpus import RIGHTS, ClaimGpus
from torchyard.kubernetes.client.errors import Details, Rejected
from torchyard.kubernetes.diagnostics.claim_templates import gpus_of, path
from torchyard.kubernetes.manifests.pod import pod, template
from torchyard.reconcile.actions import CreatePod

CLAIMS = [{"name": "gpus", "template": "h100"}, {"name": "nics", "template": "rdma"}]
SPEC = {"script": "1", "resources": {"claims": CLAIMS, "cpu": 8}}
IN_POD = [
    {"name": "gpus", "resourceClaimTemplateName": "h100"},
    {"name": "nics", "resourceClaimTemplateName": "rdma"},
]


def job(**spec):
    return read_job({"metadata": {"name": "cvrp", "uid": "u-1", "namespace": "team"}, "spec": SPEC | spec})


def made(gpus=0, **spec):
    return pod(job(**spec), CreatePod(name="cvrp-0-1", index=1, incarnation=0), SITE, claimed_gpus=gpus)


def asks(*requests):
    return {"spec": {"spec": {"devices": {"requests": list(requests)}}}}


def exactly(device_class, **more):
    return {"name": "r", "exactly": {"deviceClassName": device_class, **more}}


def test_the_pod_claims_devices_for_its_trainer_alone():
    document = made()["spec"]
    assert document["resourceClaims"] == IN_POD
    (trainer,), (installer,) = document["containers"], document["initContainers"]
    assert trainer["resources"]["claims"] == [{"name": "gpus"}, {"name": "nics"}]
    assert "claims" not in installer["resources"]
    assert "resourceClaims" not in built()["spec"]


def test_a_queue_sees_the_claims():
    spec = template(job(), SITE)["spec"]
    assert spec["resourceClaims"] == IN_POD
    assert spec["containers"][0]["resources"]["claims"] == [{"name": "gpus"}, {"name": "nics"}]


@pytest.mark.parametrize(
    ("gpus", "spec", "procs", "expected", "threads"),
    [
        (0, {}, "auto", None, None),
        (4, {}, "4", "4", "2"),
        (0, {"procsPerNode": 2}, "2", None, "4"),
        (4, {"procsPerNode": 2}, "2", "4", "4"),
        (4, {"gpusPerNode": 1}, "5", "5", "1"),
    ],
)
def test_the_agent_counts_gpus_unless_the_template_tells(gpus, spec, procs, expected, threads):
    found = env(made(gpus, **spec))
    assert found["TORCHYARD_PROCS"] == procs
    assert found.get("TORCHYARD_GPUS") == expected
    assert found.get("OMP_NUM_THREADS") == threads


@pytest.mark.parametrize(
    ("template_", "gpus"),
    [
        (asks(exactly("gpu.nvidia.com", count=8), exactly("rdma.example.com", count=8)), 8),
        (asks(exactly("mig.nvidia.com"), exactly("gpu.amd.com")), 2),
        (asks(exactly("gpu.nvidia.com", allocationMode="All")), None),
        (asks(exactly("rdma.example.com", allocationMode="All")), 0),
        (
            asks({"name": "r", "firstAvailable": [
                {"name": "a", "deviceClassName": "gpu.nvidia.com", "count": 2},
                {"name": "b", "deviceClassName": "mig.nvidia.com", "count": 2},
            ]}), 2,
        ),
        (
            asks({"name": "r", "firstAvailable": [
                {"name": "a", "deviceClassName": "gpu.nvidia.com", "count": 2},
                {"name": "b", "deviceClassName": "gpu.nvidia.com", "count": 4},
            ]}), None,
        ),
        (asks(exactly("gpu.nvidia.com", count=10**9)), None),
        (asks(exactly("gpu.nvidia.com", count="8")), None),
        ({"spec": "x"}, 0),
        ({}, 0),
    ],
)  # fmt: skip
def test_the_gpus_of_a_template(template_, gpus):
    assert gpus_of(template_) == gpus


async def test_templates_are_read_at_most_once_a_minute_and_one_that_is_unknown_counts_nothing():
    server, now = ObjectServer(), [0.0]
    reads = []
    original = server.request

    async def request(verb, at, **options):
        reads.append(at)
        return await original(verb, at, **options)

    server.request = request
    counts = ClaimGpus(server, lambda: now[0])
    assert await counts.of(job()) == 0
    for name, gpus in (("h100", 8), ("rdma", 0)):
        request_ = exactly("gpu.nvidia.com" if gpus else "rdma.example.com", count=max(1, gpus))
        server.objects[path("team", name)] = asks(request_)
    assert await counts.of(job()) == 0
    now[0] = 61.0
    assert await counts.of(job()) == 8
    assert await counts.of(job()) == 8
    assert len(reads) == 4
    assert all(at.startswith("/apis/resource.k8s.io/v1/namespaces/team/resourceclaimtemplates/") for at in reads)
    assert RIGHTS[0].verbs == ("get",)


async def test_without_the_right_the_job_runs_and_its_agents_count():
    server = ObjectServer()
    server.errors = {"GET": [Rejected(403, "Forbidden", "cannot get resourceclaimtemplates", Details())] * 2}
    assert await ClaimGpus(server, lambda: 0.0).of(job()) == 0
    assert await ClaimGpus(None, lambda: 0.0).of(job()) == 0
