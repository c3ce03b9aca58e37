"""An API server on loopback that answers as a test says, and the command line that knows no other cluster."""

import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web
from tests.cli.conftest import CommandLine

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]

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
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        server = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": server}}],
            "users": [{"name": "test", "user": {}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        torchyard.env["KUBECONFIG"] = str(torchyard.folder / "kubeconfig")
        (torchyard.folder / "kubeconfig").write_text(json.dumps(document))
        yield
    finally:
        await runner.cleanup()
