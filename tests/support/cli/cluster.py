"""An API server on loopback that answers as a test says, and the command line that knows no other cluster."""

import contextlib
import ssl
from collections.abc import AsyncIterator

from aiohttp import web
from tests.cli.conftest import CommandLine
from tests.support.kubernetes.api_server import Answer, kubeconfig, serving

JOB = {
    "apiVersion": "torchyard.dev/v1alpha1",
    "kind": "TrainingJob",
    "metadata": {"name": "cvrp", "namespace": "team", "uid": "u-1", "creationTimestamp": "2026-11-21T06:55:50Z"},
    "spec": {"trainer": {"name": "cvrp"}, "nodes": 2},
}


def pod(number: int) -> dict:
    """A running pod of that job."""
    owner = {"apiVersion": JOB["apiVersion"], "kind": "TrainingJob", "name": "cvrp", "uid": "u-1", "controller": True}
    metadata = {"name": f"cvrp-0-{number}", "namespace": "team", "uid": f"p-{number}", "resourceVersion": "1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "ownerReferences": [owner]},
        "spec": {"nodeName": "node", "containers": [{"name": "trainer"}]},
        "status": {"phase": "Running"},
    }


def objects(request: web.Request, state: str = "Running", pods: int = 2, **spec: object) -> web.Response:
    """The job, or the list of its pods."""
    if request.path.split("/")[-1] == "cvrp":
        return web.json_response({**JOB, "spec": {**JOB["spec"], **spec}, "status": {"state": state}})
    return web.json_response({"kind": "PodList", "items": [pod(number) for number in range(pods)]})


@contextlib.asynccontextmanager
async def cluster(torchyard: CommandLine, answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[None]:
    """Serve, and let a kubeconfig of the command line say so."""
    async with serving(answer, tls) as url:
        torchyard.env["KUBECONFIG"] = str(kubeconfig(torchyard.folder, url))
        yield
