"""Jobs and namespaces that are deleted: in every phase, in every way, and created again at once."""

import asyncio
import contextlib
import json

import pytest
from tests.support.cluster.fault_proxy import FaultProxy
from tests.support.cluster.jobs import SLEEPS, Jobs, python
from tests.support.cluster.namespaces import delete_namespace, make_namespace
from tests.support.cluster.operators import until

from torchyard.kubernetes.client.api import MERGE_PATCH
from torchyard.kubernetes.client.errors import NotFound

STUBBORN = python("import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)")
ONE = {"nodes": 1, "gracePeriod": "3s"}
NOWHERE = {"nodeSelector": {"torchyard.dev/nowhere": "true"}}


@pytest.fixture
def jobs(api, namespace) -> Jobs:
    return Jobs(api, namespace)


async def test_a_job_deleted_in_any_phase_takes_its_pods_along_and_gets_no_new_ones(jobs, operator):
    later = {"backoff": {"initial": "5m", "max": "5m"}}
    phases = {
        "pending": ({"command": SLEEPS, "scheduling": NOWHERE}, "NoMatchingNode"),
        "refused": ({"command": SLEEPS, "serviceAccountName": "nobody"}, "MissingServiceAccount"),
        "starting": ({"command": SLEEPS}, "Starting"),
        "recovering": ({"command": python("raise SystemExit(3)"), "restart": later}, "WorkerFailed"),
        "suspending": ({"command": STUBBORN, "gracePeriod": "6s"}, "Starting"),
        "suspended": ({"command": SLEEPS, "suspend": True}, "Suspended"),
        "over": ({"command": python("print('done')")}, "Completed"),
    }
    await jobs.submit("created", command=SLEEPS, **ONE)
    await _delete(jobs, "created")

    async def delete_when(name: str) -> None:
        spec, reason = phases[name]
        await jobs.submit(name, **{**ONE, **spec})
        await jobs.until(name, lambda now: now.get("reason") == reason)
        if name == "suspending":
            await jobs.edit(name, suspend=True)
            await jobs.until(name, lambda now: now.get("state") == "Suspending")
        await _delete(jobs, name)

    async with asyncio.TaskGroup() as group:
        for name in phases:
            group.create_task(delete_when(name))
    await until(lambda: _pods_are(jobs, set()), why=lambda: "pods of deleted jobs are still there")
    # Whoever looks at a new job has looked at the others.
    await jobs.submit("last", command=SLEEPS, **ONE, scheduling=NOWHERE)
    await until(lambda: _pods_are(jobs, {"last-0-0"}))
    assert "reconcile failed" not in operator.log.read_text()


@pytest.mark.usefixtures("operator")
async def test_a_deleted_job_that_a_finalizer_of_another_controller_holds_names_it_and_has_no_pods(jobs):
    await jobs.submit("held", command=SLEEPS, **ONE)
    await jobs.until("held", lambda now: now.get("round") == 1)
    path = f"{jobs.path}/held"
    finalizers = {"metadata": {"finalizers": ["example.dev/keep"]}}
    await jobs.api.request("PATCH", path, body=finalizers, content_type=MERGE_PATCH)
    await jobs.api.request("DELETE", path, body={})
    status = await jobs.until("held", lambda now: now.get("state") == "Terminating")
    assert "example.dev/keep" in status["message"]
    await until(lambda: _pods_are(jobs, set()), why=lambda: "the pods of a job that is being deleted still run")
    await jobs.api.request("PATCH", path, body={"metadata": {"finalizers": []}}, content_type=MERGE_PATCH)

    async def gone():
        try:
            await jobs.api.request("GET", path)
        except NotFound:
            return True
        return False

    await until(gone)


@pytest.mark.usefixtures("operator")
async def test_foreground_and_background_take_pods_along_and_orphans_are_left_alone(jobs):
    ways = ("Foreground", "Background", "Orphan")
    for way in ways:
        await jobs.submit(way.lower(), command=SLEEPS, **ONE, scheduling=NOWHERE)
    names = {f"{way.lower()}-0-0" for way in ways}
    await until(lambda: _pods_are(jobs, names))
    orphan = (await jobs.pods("orphan"))["orphan-0-0"]["metadata"]["uid"]
    for way in ways:
        await _delete(jobs, way.lower(), propagationPolicy=way)
    await until(lambda: _pods_are(jobs, {"orphan-0-0"}))
    await until(lambda: _gone(jobs, "orphan"))
    # A job of that name does not take it for its own.
    await jobs.submit("orphan", command=SLEEPS, **ONE, scheduling=NOWHERE)
    assert "pod orphan-0-0" in (await jobs.announced("orphan", "NameTaken"))[0]
    await until(lambda: _counts(jobs, "orphan", 2))
    left = (await jobs.pods("orphan"))["orphan-0-0"]["metadata"]
    assert (left["uid"], left.get("ownerReferences"), left.get("deletionTimestamp")) == (orphan, None, None)


@pytest.mark.usefixtures("operator")
async def test_a_recreated_job_waits_for_the_pods_of_the_deleted_one(jobs):
    await jobs.submit("again", command=STUBBORN, nodes=1, gracePeriod="6s")
    await jobs.until("again", lambda now: now.get("round") == 1)
    (former,) = (await jobs.pods("again")).values()
    await _delete(jobs, "again")
    await jobs.submit("again", command=SLEEPS, **ONE)
    await jobs.until("again", lambda now: now.get("reason") == "PredecessorStopping")
    status = await jobs.until("again", lambda now: now.get("round") == 1)
    assert status.get("restarts", {}).get("total", 0) == 0
    (pod,) = (await jobs.pods("again")).values()
    assert pod["metadata"]["uid"] != former["metadata"]["uid"]


async def test_a_namespace_that_is_deleted_ends_its_jobs_without_a_storm(api, namespace, make_operator, tmp_path):
    doomed = await make_namespace(api)
    async with FaultProxy(api).listening() as proxy:
        operator = make_operator(kubeconfig=proxy.kubeconfig(tmp_path / "proxied"), flags=("--namespace", doomed))
        operator.start()
        there, elsewhere = Jobs(api, doomed), Jobs(api, namespace)
        for name in ("one", "two"):
            await there.submit(name, command=SLEEPS, **ONE)
        await there.until("one", lambda now: now.get("round") == 1)
        await delete_namespace(api, doomed)
        begun = len(proxy.requests)
        await until(lambda: _is_gone(api, f"/api/v1/namespaces/{doomed}"), why=lambda: f"{doomed} is still there")
        made = [each for each in proxy.requests[begun:] if (each.verb, each.path) == ("POST", f"{there.core}/pods")]
        assert len(made) <= 4
        await elsewhere.submit("three", command=SLEEPS, **ONE, scheduling=NOWHERE)
        await until(lambda: _pods_are(elsewhere, {"three-0-0"}))
        assert operator.log.read_text().count(doomed) < 30


async def _delete(jobs: Jobs, name: str, **options) -> None:
    await jobs.api.request("DELETE", f"{jobs.path}/{name}", body=options)


async def _pods_are(jobs: Jobs, names: set[str]) -> bool:
    found = json.loads(await jobs.api.request("GET", f"{jobs.core}/pods"))["items"]
    return {each["metadata"]["name"] for each in found} == names


async def _gone(jobs: Jobs, name: str) -> bool:
    return await _is_gone(jobs.api, f"{jobs.path}/{name}")


async def _is_gone(api, path: str) -> bool:
    with contextlib.suppress(NotFound):
        await api.request("GET", path)
        return False
    return True


async def _counts(jobs, name, number):
    return len(await jobs.pods(name)) == number
