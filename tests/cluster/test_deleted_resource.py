"""The custom resource definition is deleted by mistake, while a job has pods, and created again."""

import json

import pytest
from tests.support.cluster.jobs import SLEEPS, Jobs
from tests.support.cluster.namespaces import install
from tests.support.cluster.operators import until

from torchyard.kubernetes.client.errors import NotFound

CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/trainingjobs.torchyard.dev"
NOWHERE = {"nodeSelector": {"torchyard.dev/nowhere": "true"}}  # pods are enough, wherever the test runs


@pytest.mark.alone  # all jobs of the cluster go
async def test_jobs_and_their_pods_go_with_the_resource_and_new_jobs_work_once_it_is_back(api, namespace, operator):
    jobs = Jobs(api, namespace)

    async def pods() -> set[str]:
        found = json.loads(await api.request("GET", f"{jobs.core}/pods"))["items"]
        return {each["metadata"]["name"] for each in found if "deletionTimestamp" not in each["metadata"]}

    async def has(*names: str) -> bool:
        return await pods() == set(names)

    async def gone() -> bool:
        try:
            await api.request("GET", CRD)
        except NotFound:
            return True
        return False

    await jobs.submit("former", nodes=2, command=SLEEPS, scheduling=NOWHERE)
    await until(lambda: has("former-0-0", "former-0-1"))
    try:
        await api.request("DELETE", CRD)
        await until(gone)
        await until(has, why=lambda: "pods of jobs that are gone stay")
    finally:
        await install(api)
    await jobs.submit("former", nodes=1, command=SLEEPS, scheduling=NOWHERE)
    await until(lambda: has("former-0-0"), why=operator.log.read_text)
    assert operator.process.poll() is None
    assert "reconcile failed" not in operator.log.read_text()
