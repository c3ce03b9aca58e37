"""Jobs of a cluster in Python, against an API server on loopback: the same calls with and without `await`."""

import contextlib
import json

import pytest
from aiohttp import web
from tests.support.cli.cluster import JOB, pod
from tests.support.kubernetes.api_server import kubeconfig, refused, serving
from tests.support.waiting import DEADLINE

import torchyard as ty

METADATA = {**JOB["metadata"], "resourceVersion": "7"}
LOG = b"2026-11-21T07:00:00.1Z [rank 0] step 1\n2026-11-21T07:00:00.2Z [rank 1] step 1\n2026-11-21T07:00:00.3Z agent\n"
MESSAGE = "no node has a free GPU"


class Server:
    """One job, its pods and their logs; remembers what was written."""

    def __init__(self):
        self.written = []
        self.states = ["Running", "Succeeded"]
        self.uid = "u-1"

    def job(self, state="Running", **spec):
        status = {"state": state, "message": MESSAGE, "metrics": {"loss": 0.5}}
        return {**JOB, "metadata": {**METADATA, "uid": self.uid}, "spec": {**JOB["spec"], **spec}, "status": status}

    async def __call__(self, request):  # noqa: PLR0911 -- a path after the other
        if request.method in {"POST", "PATCH", "DELETE"}:
            self.written.append((request.method, await request.json()))
        if request.method == "POST":
            if request.path.endswith("taken/trainingjobs"):
                return refused(409, "AlreadyExists", "exists")
            return web.json_response(self.job(""))
        if request.method == "PATCH":
            return web.json_response(self.job("Suspended", suspend=True))
        if "watch" in request.query:
            events = [{"type": "MODIFIED", "object": self.job(state)} for state in self.states]
            return web.Response(body="".join(json.dumps(each) + "\n" for each in events))
        if request.path.endswith("/log"):
            return web.Response(body=LOG)
        if request.path.endswith("/pods"):
            return web.json_response({"items": [pod(0)]})
        if request.path.endswith("/events"):
            return web.json_response({"items": []})
        if request.path.endswith("/missing"):
            return refused(404, "NotFound", "gone", details={"kind": "trainingjobs", "name": "missing"})
        if request.path.endswith("/trainingjobs"):
            return web.json_response({"metadata": {"resourceVersion": "7"}, "items": [self.job("Pending")]})
        return web.json_response(self.job())


@pytest.fixture
async def server(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    made = Server()
    async with contextlib.AsyncExitStack() as stack:
        # Its loop is this one: a synchronous call would block it, so those are made in a thread.
        url = await stack.enter_async_context(serving(made))
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, url, namespace="team")))
        yield made


async def test_a_job_is_submitted_followed_and_stopped(server):
    job = await ty.aio.submit(JOB, overrides={"trainer.params.steps": 5})
    method, body = server.written[0]
    assert (method, body["metadata"]["namespace"], body["spec"]["trainer"]["params"]) == ("POST", "team", {"steps": 5})
    assert (job.name, job.uid, job.namespace) == ("cvrp", "u-1", "team")
    assert (await job.status()).metrics == {"loss": 0.5}
    assert [status.state async for status in job.watch()] == ["Pending", "Running", "Succeeded"]
    assert (await job.wait()).state == "Succeeded"
    lines = [line async for line in job.logs()]
    assert [(line.rank, line.text) for line in lines] == [(0, "step 1"), (1, "step 1"), (None, "agent")]
    assert str(lines[0]) == "[r0 cvrp-0-0] step 1"
    assert [line.rank async for line in job.logs(rank=1)] == [1]
    why = await job.why()
    assert MESSAGE in why.sentence
    assert str(why).startswith("cvrp in namespace team of context test is Running.")
    await job.stop(wait=False)
    assert server.written[-1] == ("PATCH", {"spec": {"suspend": True}})
    await job.delete()
    assert server.written[-1][0] == "DELETE"
    assert [each.name for each in await ty.aio.jobs(namespace="team")] == ["cvrp"]


async def test_a_job_that_fails_raises_with_its_message(server):
    server.states = ["Failed"]
    job = await ty.aio.get_job("cvrp", namespace="team")
    with pytest.raises(ty.JobFailedError, match=f"cvrp failed: {MESSAGE}"):
        await job.wait()
    assert (await job.wait(check=False)).state == "Failed"


async def test_another_job_of_the_same_name_is_not_this_one(server):
    job = await ty.aio.get_job("cvrp", namespace="team")
    server.uid = "u-2"
    with pytest.raises(ty.NotFoundError, match="'cvrp' was deleted, and another one has its name"):
        await job.status()


async def test_the_error_for_a_job_that_the_cluster_rejects_names_the_fix(server):
    with pytest.raises(ty.NotFoundError, match="there is no TrainingJob 'missing' in namespace team"):
        await ty.aio.get_job("missing", namespace="team")
    with pytest.raises(ty.TorchYardError, match=r"there is a TrainingJob 'cvrp' in namespace taken .* already"):
        await ty.aio.submit({"metadata": {"name": "cvrp"}, "spec": JOB["spec"]}, namespace="taken")
    with pytest.raises(ty.TorchYardError, match="is for namespace 'team', not 'other'"):
        await ty.aio.submit(JOB, namespace="other")


def test_the_same_without_await(tmp_path, monkeypatch):
    """In a thread that has no loop, against a server whose loop is that of the API itself."""
    from torchyard.client.portal import PORTAL

    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    server, stack = Server(), contextlib.AsyncExitStack()
    url = PORTAL.call(stack.enter_async_context(serving(server)))
    try:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, url, namespace="team")))
        job = ty.submit(JOB)
        assert job.status.state == "Running"
        assert job.manifest["metadata"]["uid"] == "u-1"
        assert [status.state for status in job.watch()] == ["Pending", "Running", "Succeeded"]
        assert [line.rank for line in job.logs(rank=0)] == [0]
        for line in job.logs():  # leaving the loop closes the connection
            assert line.text == "step 1"
            break
        assert job.wait(timeout=DEADLINE).state == "Succeeded"
        assert MESSAGE in str(job.why())
    finally:
        PORTAL.call(stack.aclose())


async def test_a_call_inside_a_callback_of_the_api_is_named_instead_of_waiting_for_ever():
    from torchyard.client.portal import PORTAL

    async def callback():
        ty.jobs()

    with pytest.raises(RuntimeError, match=r"use torchyard\.aio there"):
        PORTAL.call(callback())
