"""Access to /metrics: only for accounts that the API server authenticates and authorizes."""

import asyncio
import json

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from tests.agents.test_tokens import token

from torchyard.agents import server
from torchyard.agents.auth.readers import BOUNDS, Readers
from torchyard.agents.registry import AgentRegistry
from torchyard.app.metrics_page import REFUSALS_BURST, MetricsPage
from torchyard.app.probes import Readiness, application

KUBERNETES = "https://kubernetes.default.svc"
PROMETHEUS = "system:serviceaccount:monitoring:prometheus"
GOOD, POWERLESS, FORGED = (
    token(audience=KUBERNETES, sub=sub, signature=signature)
    for sub, signature in ((PROMETHEUS, b"good"), ("system:serviceaccount:team:default", b"good"), ("x", b"forged"))
)


class ApiServer:
    """Believes signatures, and lets one account read."""

    def __init__(self):
        self.reviews, self.questions, self.away, self.now = 0, [], False, 1000.0
        self.allowed = {PROMETHEUS}
        self.readers = Readers(self._review, self._access, clock=lambda: self.now)

    async def _review(self, text):
        self.reviews += 1
        await asyncio.sleep(0)
        if self.away:
            raise ConnectionError("away")
        users = {GOOD: PROMETHEUS, POWERLESS: "system:serviceaccount:team:default"}
        if text not in users:
            return b'{"status": {"user": {}, "error": "invalid bearer token"}}'
        user = {"username": users[text], "uid": "u", "groups": ["system:authenticated"], "extra": {"a": ["b"]}}
        return json.dumps({"status": {"authenticated": True, "user": user}}).encode()

    async def _access(self, document):
        self.questions.append(document["spec"])
        return json.dumps({"status": {"allowed": document["spec"]["user"] in self.allowed}}).encode()


@pytest.fixture
async def world():
    api = ApiServer()
    registry = CollectorRegistry()
    Gauge("torchyard_leader", "Leads.", registry=registry).set(1)

    async def no_pod(_token):
        return None

    agents = server.application(AgentRegistry(lambda: 0.0, interval=1.0, on_news=lambda _pod: None), no_pod)

    async def written():
        return generate_latest(registry)

    page = MetricsPage(written, api.readers.may_read, agents.handle)
    intake = server.Intake(server.Application(page.handle, agents.counters, agents.limits))
    async with intake, aiohttp.ClientSession(intake.url) as session:

        async def ask(bearer=None, path="/metrics", method="GET"):
            headers = {"Authorization": f"Bearer {bearer}"} if bearer is not None else {}
            async with session.request(method, path, headers=headers) as response:
                return response.status, await response.text()

        api.ask = ask
        yield api


async def test_an_account_with_the_right_reads_the_metrics(world):
    status, page = await world.ask(GOOD, "/metrics?x=1")
    assert (status, "torchyard_leader 1.0" in page) == (200, True)
    asked = {"path": "/metrics", "verb": "get"}
    groups = {"groups": ["system:authenticated"], "uid": "u", "extra": {"a": ["b"]}}
    assert world.questions == [{"user": PROMETHEUS, **groups, "nonResourceAttributes": asked}]


@pytest.mark.parametrize(
    ("bearer", "status"),
    [(None, 401), ("", 401), ("x", 401), (FORGED, 401), (POWERLESS, 403), ("\u00e9", 401), ("a" * 20_000, 401)],
)
async def test_everyone_else_gets_no_figure(world, bearer, status):
    got, page = await world.ask(bearer)
    assert (got, "torchyard_leader" in page) == (status, False)


async def test_other_paths_and_methods_are_as_before(world):
    assert (await world.ask(GOOD, "/v1/sync", "POST"))[0] == 403  # no pod's token
    assert (await world.ask(GOOD, "/metricsx"))[0] == 404
    assert (await world.ask(GOOD, method="POST"))[0] == 405


async def test_answers_are_kept_for_a_minute_and_a_right_that_is_missing_for_ten_seconds(world):
    for _ in range(20):
        assert (await world.ask(GOOD))[0] == 200
    assert world.reviews == 1
    world.now += BOUNDS.good_seconds
    world.allowed.clear()
    assert (await world.ask(GOOD))[0] == 403
    world.allowed.add(PROMETHEUS)
    assert (await world.ask(GOOD))[0] == 403
    world.now += 10
    assert (await world.ask(GOOD))[0] == 200


async def test_without_an_api_server_known_readers_go_on_and_others_try_again_later(world):
    assert (await world.ask(GOOD))[0] == 200
    world.away = True
    world.now += 61
    assert [(await world.ask(bearer))[0] for bearer in (GOOD, POWERLESS)] == [200, 503]
    world.now = 4600.0
    assert (await world.ask(GOOD))[0] == 401, "no token outlives its own time"


async def test_a_flood_of_forged_tokens_costs_few_reviews(world):
    statuses = [(await world.ask(token(audience=KUBERNETES, signature=b"%d" % n)))[0] for n in range(60)]
    assert statuses[:20] == [401] * 20
    assert statuses[-1] == 429
    assert world.reviews < 2 * REFUSALS_BURST


async def test_the_probes_are_open_and_have_no_metrics_unless_asked_to():
    async def stuck():
        return ""

    async def page():
        return b""

    for metrics, there in ((None, False), (page, True)):
        paths = {resource.canonical for resource in application(Readiness({}), stuck, metrics).router.resources()}
        assert paths == {"/healthz", "/readyz", *(["/metrics"] if there else [])}
