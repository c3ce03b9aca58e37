"""Admission webhooks of other people: one refuses pods, one is away, one puts a side-car into them."""

import pytest
from tests.support.cluster.jobs import Jobs, python
from tests.support.cluster.operators import AGENT_IMAGE, until
from tests.support.cluster.webhooks import SAFE, Webhook, change, refuse, webhook

HELLO = python("print('hello')")
ONE = {"command": HELLO, "nodes": 1}
SIDE_CAR = {
    "name": "mesh",
    "image": AGENT_IMAGE,
    "command": ["python3", "-c", "import signal; signal.pause()"],
    "securityContext": SAFE,
}


@pytest.fixture
def jobs(api, namespace, operator) -> Jobs:
    return Jobs(api, namespace)


@pytest.fixture
def stands(api, namespace, certificates, address):
    """Puts a webhook in force for a while."""
    return lambda *given: webhook(api, namespace, Webhook(*given), tls=certificates, address=address)


async def test_a_webhook_that_refuses_is_named_and_an_absent_one_waited_for(jobs, stands):
    async with stands("away.example.com", "waits", None):
        await jobs.submit("waits", **ONE)
        async with stands("team.example.com", "refused", refuse("pods must carry the label team")):
            await jobs.submit("refused", **ONE)
            refused = await jobs.until("refused", lambda now: now.get("reason") == "AdmissionDenied")
        waits = await jobs.until("waits", lambda now: now.get("reason") == "WebhookUnavailable")
    assert "team.example.com: pods must carry the label team" in refused["message"]
    assert "away.example.com" in waits["message"]
    assert [_stalled(each) for each in (refused, waits)] == ["True", "False"]
    assert (await jobs.ends("waits"))["state"] == "Succeeded"


async def test_a_side_car_keeps_no_finished_job(jobs, stands):
    label = {"op": "add", "path": "/metadata/labels/team", "value": "vision"}
    note = {"op": "add", "path": "/metadata/annotations/mesh.example.com~1status", "value": "injected"}
    side_car = {"op": "add", "path": "/spec/containers/0", "value": SIDE_CAR}
    async with stands("mesh.example.com", "changed", change(label, note, side_car)):
        await jobs.submit("changed", command=HELLO, nodes=2)
        status = await jobs.ends("changed")
    assert (status["state"], status["round"], status.get("restarts", {}).get("total", 0)) == ("Succeeded", 1, 0)
    pods = await jobs.pods("changed")
    assert {tuple(container["name"] for container in pod["spec"]["containers"]) for pod in pods.values()} == {
        ("mesh", "trainer")
    }
    # The mesh would go on for ever.
    await until(lambda: _none_is_left(jobs, "changed"), why=lambda: "the side-cars keep their pods")


async def test_a_webhook_that_strips_pods_is_named_and_leaves_none_behind(jobs, stands):
    side_car = change({"op": "add", "path": "/spec/containers/0", "value": SIDE_CAR})
    strip = change({"op": "remove", "path": "/metadata/ownerReferences"})
    probed = {"probe": side_car}  # by which the test sees that the webhook is in force
    async with stands("strip.example.com", "strip", lambda pod: probed.get(_name(pod), strip)(pod)):
        await jobs.submit("strip", command=HELLO, nodes=2)
        status = await jobs.until("strip", lambda now: now.get("reason") == "PodAltered")
        assert "(its owner)" in status["message"]
        await until(lambda: _none_is_left(jobs, "strip"), why=lambda: "pods without an owner are left")
        assert (status.get("incarnation", 0), _stalled(status)) == (0, "True")


def _name(pod: dict) -> str:
    return pod.get("metadata", {}).get("name", "probe")


async def _none_is_left(jobs: Jobs, name: str) -> bool:
    return not await jobs.pods(name)


def _stalled(status: dict) -> str:
    return next(each["status"] for each in status["conditions"] if each["type"] == "Stalled")
