"""An operator that was away, starved or has a wrong clock, and a job that a user restored."""

import asyncio
import contextlib
import json
import signal

import pytest
from tests.support.cluster.jobs import ENDED, SLEEPS, Jobs, counts, python
from tests.support.cluster.operators import until

from torchyard.api.values import Time
from torchyard.kubernetes.client.api import MERGE_PATCH

ONE = {"nodes": 1, "gracePeriod": "2s"}


@pytest.fixture
def jobs(api, namespace) -> Jobs:
    return Jobs(api, namespace)


@pytest.fixture
def restarted(make_operator):
    """One that takes its own lease over, as the container of a Deployment does."""
    operator = make_operator(pod="operator-0")
    operator.start()
    return operator


async def test_edits_and_a_lost_pod_while_it_was_away_are_one_new_round(jobs, restarted):
    await jobs.submit("away", command=SLEEPS, nodes=2, gracePeriod="2s")
    first = await jobs.until("away", lambda now: now.get("round") == 1)
    await restarted.kill()
    for deadline in ("2h", "3h", "4h"):
        await jobs.edit("away", activeDeadline=deadline)
    (meeting, _), (kept, _) = [await jobs.member("away", index) for index in range(2)]
    await jobs.delete_pod(meeting, grace_seconds=0)
    restarted.start()
    status = await jobs.until("away", lambda now: now.get("round") == 2)
    assert status["observedGeneration"] == 4
    assert (status["restarts"]["total"], status["restarts"].get("counted", 0)) == (1, 0)
    (lost, _) = status["attempts"]
    assert (lost["reason"], lost["cause"]["rank"]) == ("PodLost", 0)
    assert lost["cause"]["exception"] == "the pod of index 0 is gone for an unknown reason"
    meets = [each["rendezvous"]["masterAddress"] for each in (first, status)]
    assert meets[0] != meets[1]
    pods = {(await jobs.member("away", index))[0] for index in range(2)}
    assert kept in pods
    assert meeting not in pods


async def test_a_twentieth_of_a_core_is_slow_and_wrong_about_nothing(jobs, operator):
    async with _starved(operator):
        await jobs.submit("slow", command=counts(steps=60, seconds=0.5), **ONE, health={"stall": "15s"})
        status = await jobs.ends("slow")
    assert (status["state"], status["round"], status["progress"]["step"]) == ("Succeeded", 1, 60), status["message"]
    assert await operator.leads()


async def test_a_clock_that_is_hours_ahead_harms_no_job(jobs, restarted):
    await jobs.submit("over", command=python("print('hello')"), **ONE, ttlAfterFinished="1h")
    await jobs.submit("long", command=SLEEPS, **ONE, activeDeadline="1h")
    await jobs.ends("over")
    await jobs.until("long", lambda now: now.get("round") == 1)
    await restarted.kill()
    restarted.start(ahead=4 * 3600)
    # What it has looked at, it has seen the edit of.
    await jobs.edit("over", ttlAfterFinished="61m")
    await jobs.edit("long", activeDeadline="61m")
    for name, state in (("over", "Succeeded"), ("long", "Starting")):
        status = await jobs.until(name, lambda now: now["observedGeneration"] == 2)
        assert (status["state"], status["round"]) == (state, 1)
    await until(lambda: _hears(restarted))
    assert (await jobs.status("over"))["state"] == "Succeeded"
    assert Time.parse((await jobs.status("long"))["lastUpdateTime"]) < jobs.api.time() + 60


async def _hears(operator) -> bool:
    return await operator.figure("torchyard_intake_syncs_total") > 0


@contextlib.asynccontextmanager
async def _starved(operator):
    """It is stopped nineteen twentieths of the time."""

    async def stop_and_go() -> None:
        while True:
            for number, seconds in ((signal.SIGSTOP, 0.19), (signal.SIGCONT, 0.01)):
                operator.signal(number)
                await asyncio.sleep(seconds)

    task = asyncio.create_task(stop_and_go())
    try:
        yield
    finally:
        task.cancel()
        operator.signal(signal.SIGCONT)


@pytest.mark.usefixtures("operator")
async def test_a_job_that_is_restored_with_its_status_continues_with_new_pods(jobs, api):
    """As a backup does it: the object, then its status, which speaks of pods that are long gone."""
    await jobs.submit("kept", command=SLEEPS, **ONE)
    await jobs.until("kept", lambda now: now.get("round") == 1)
    kept = json.loads(await api.request("GET", f"{jobs.path}/kept"))
    await api.request("DELETE", f"{jobs.path}/kept", body={})
    await until(lambda: _has_no_pods(jobs, "kept"))
    restored = {key: kept[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": {"name": "kept"}}
    made = json.loads(await api.request("POST", jobs.path, body=restored))
    body = {"status": kept["status"]}
    await api.request("PATCH", f"{jobs.path}/kept/status", body=body, content_type=MERGE_PATCH)
    status = await jobs.until("kept", lambda now: now["state"] in ENDED or now["round"] == 2)
    assert (status["state"], status["attempts"][0]["reason"]) == ("Recovering", "PodLost"), status["message"]
    (pod,) = (await jobs.pods("kept")).values()
    assert pod["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
    assert pod["metadata"]["uid"] in status["rendezvous"]["members"]


async def _has_no_pods(jobs, name) -> bool:
    return not await jobs.pods(name)
