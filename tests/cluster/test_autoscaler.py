"""A HorizontalPodAutoscaler scales a job that trains, by a metric that another program serves."""

import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from tests.support.cluster.jobs import Jobs
from tests.support.cluster.operators import make_certificates
from tests.support.cluster.training import Training

from torchyard.kubernetes.client.errors import NotFound

GROUP = "external.metrics.k8s.io/v1beta1"
SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
ELASTIC = {"minNodes": 1, "maxNodes": 3, "wait": "5s", "patience": "5s", "cooldown": "1s"}


class Queue:
    """How many samples wait, as the API of external metrics serves it: on this machine, which the API server reaches.

    Args:
        address: of this machine.
        folder: for certificates.
    """

    def __init__(self, address: str, folder: Path) -> None:
        self.length, self.port = 0, 0
        self._address, self._folder = address, folder

    @contextlib.asynccontextmanager
    async def served(self, jobs: Jobs) -> AsyncIterator["Queue"]:
        """Serve it within the block, as a part of the API of the cluster."""
        app = web.Application()
        app.router.add_get(f"/apis/{GROUP}", self._resources)
        app.router.add_get(f"/apis/{GROUP}/namespaces/{{namespace}}/queue", self._value)
        runner = web.AppRunner(app)
        await runner.setup()
        tls = make_certificates(self._folder, self._address)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tls / "tls.crt", tls / "tls.key")
        site = web.TCPSite(runner, "0.0.0.0", 0, ssl_context=context)
        await site.start()
        self.port = runner.addresses[0][1]
        version, group = reversed(GROUP.split("/"))
        name = f"{version}.{group}"
        try:
            await self._register(jobs, name, group, version)
            yield self
        finally:
            with contextlib.suppress(NotFound):
                await jobs.api.request("DELETE", f"{SERVICES}/{name}")
            await runner.cleanup()

    async def _register(self, jobs: Jobs, name: str, group: str, version: str) -> None:
        ports = [{"name": "https", "port": 443, "targetPort": self.port}]
        await jobs.make("services", "queue", spec={"ports": ports})
        endpoints = {
            "metadata": {"name": "queue", "labels": {"kubernetes.io/service-name": "queue"}},
            "addressType": "IPv4",
            "ports": [{"name": "https", "port": self.port}],
            "endpoints": [{"addresses": [self._address]}],
        }
        path = f"/apis/discovery.k8s.io/v1/namespaces/{jobs.namespace}/endpointslices"
        await jobs.api.request("POST", path, body=endpoints)
        spec = {
            "group": group,
            "version": version,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "insecureSkipTLSVerify": True,
            "service": {"namespace": jobs.namespace, "name": "queue", "port": 443},
        }
        await jobs.api.request("POST", SERVICES, body={"metadata": {"name": name}, "spec": spec})

    async def _resources(self, _request: web.Request) -> web.Response:
        metric = {"name": "queue", "singularName": "", "namespaced": True, "kind": "ExternalMetricValueList"}
        resources = [{**metric, "verbs": ["get"]}]
        return web.json_response(
            {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": GROUP} | {"resources": resources}
        )

    async def _value(self, _request: web.Request) -> web.Response:
        now = {
            "metricName": "queue",
            "metricLabels": {},
            "timestamp": "2026-11-30T00:00:00Z",
            "value": str(self.length),
        }
        return web.json_response(
            {"kind": "ExternalMetricValueList", "apiVersion": GROUP, "metadata": {}, "items": [now]}
        )


@pytest.mark.alone  # a part of the API of the whole cluster
@pytest.mark.usefixtures("operator")
async def test_an_autoscaler_scales_a_job_that_trains_up_and_down(api, namespace, address, tmp_path):
    jobs = Jobs(api, namespace)

    async def members(count: int) -> dict:
        def trains(status: dict) -> bool:
            assert status.get("state") not in {"Failed", "Succeeded"}, status.get("message")
            size = len(status.get("rendezvous", {}).get("members", []))
            return status.get("state") == "Running" and size == count

        return await jobs.until("job", trains)

    async with Queue(address, tmp_path / "queue").served(jobs) as queue:
        queue.length = 10
        await Training(jobs, 5000, nodes=1, elastic=ELASTIC, resources={"memory": "1Gi"}).start()
        await members(1)
        metric = {"metric": {"name": "queue"}, "target": {"type": "AverageValue", "averageValue": "10"}}
        body = {
            "metadata": {"name": "job"},
            "spec": {
                "scaleTargetRef": {"apiVersion": "torchyard.dev/v1alpha1", "kind": "TrainingJob", "name": "job"},
                "minReplicas": 1,
                "maxReplicas": 3,
                "metrics": [{"type": "External", "external": metric}],
                "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
            },
        }
        path = f"/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers"
        await api.request("POST", path, body=body)
        queue.length = 25
        larger = await members(3)
        assert larger["nodes"]["desired"] == 3
        queue.length = 10
        await members(1)
        scaler = json.loads(await api.request("GET", f"{path}/job"))["status"]
        able = {each["type"]: each["status"] for each in scaler["conditions"]}
        assert (able["AbleToScale"], able["ScalingActive"]) == ("True", "True")
