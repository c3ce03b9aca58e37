"""The intake over real HTTP: who gets in, what is refused with which words, how long an answer is held."""

import asyncio
import contextlib
import json
import time

import aiohttp
import pytest
from tests.support.waiting import DEADLINE

from torchyard.agents.registry import AgentRegistry
from torchyard.agents.server import Intake, application, unix_intake
from torchyard.reconcile.actions import CommandAgent

TOKENS = {"good": "pod-a", "other": "pod-b"}


async def authenticate(token: str) -> str | None:
    if token == "broken":
        raise ConnectionError("the API server is away")
    return TOKENS.get(token)


async def until(condition) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():  # noqa: ASYNC110 - the condition belongs to the other side of a socket
            await asyncio.sleep(0.001)


@pytest.fixture
async def registry():
    return AgentRegistry(time.time, interval=5.0, on_news=lambda _uid: None)


@pytest.fixture(params=["tcp", "unix"])
async def post(registry, request, tmp_path):
    app, path = application(registry, authenticate), tmp_path / "intake.sock"
    async with contextlib.AsyncExitStack() as stack:
        if request.param == "unix":
            await stack.enter_async_context(unix_intake(app, path))
            base, connector = "http://localhost", aiohttp.UnixConnector(str(path))
        else:
            base, connector = (await stack.enter_async_context(Intake(app))).url, None
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))

        async def send(body: object = None, token: str | None = "good", **fields: object):
            if body is None:
                body = json.dumps({"protocol": 1, "instance": "i", "sequence": 1, "state": "ready"} | fields)
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            async with session.post(f"{base}/v1/sync", data=body, headers=headers) as response:
                return response.status, await response.json()

        yield send


async def test_state_goes_up_and_the_command_comes_down(registry, post):
    assert await post(sequence=1) == (200, {"revision": 0, "interval": 5.0, "command": {"verb": "wait"}})
    held = asyncio.create_task(post(sequence=2, wait=30))
    await until(lambda: registry.held == 1)
    registry.command(CommandAgent(pod_uid="pod-a", verb="stop", round=3))
    assert await held == (200, {"revision": 1, "interval": 5.0, "command": {"verb": "stop", "round": 3}})
    assert registry.of(["pod-a"])["pod-a"].state == "ready"


async def test_a_poll_is_held_as_long_as_it_asks(post):
    started = time.monotonic()
    status, _ = await post(wait=0.2)
    assert status == 200
    assert time.monotonic() - started >= 0.2


async def test_a_token_speaks_for_its_own_pod_only(registry, post):
    await post(token="other")
    assert list(registry.of(["pod-a", "pod-b"])) == ["pod-b"]


@pytest.mark.parametrize(("token", "status"), [(None, 401), ("", 401), ("wrong", 403), ("broken", 503)])
async def test_a_request_without_a_valid_token_is_rejected(registry, post, token, status):
    answer, body = await post(token=token)
    assert answer == status
    assert body["error"].endswith(".")
    assert registry.counters.syncs == 0


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "truncated"),
        (b"\xff\xfe", "malformed"),
        (b"[" * 5000, "object"),
        (b"[]", "object"),
        (b'{"protocol": 1}', "instance"),
        (b'{"protocol": 2, "instance": "i", "sequence": 1, "state": "ready"}', "protocol"),
        (b'{"protocol": 1, "instance": "i", "sequence": 1, "state": "dancing"}', "state"),
        (b'{"protocol": 1, "instance": "i", "sequence": -1, "state": "ready"}', "sequence"),
        (b'{"protocol": 1, "instance": "i", "sequence": 1, "state": "ready", "time": NaN}', "invalid character"),
        (b'{"protocol": 1, "instance": "i", "sequence": 1, "state": "ready", "masterPort": 70000}', "masterPort"),
    ],
)
async def test_a_malformed_body_is_refused_with_a_sentence(registry, post, body, word):
    status, answer = await post(body)
    assert status == 400
    assert word.lower() in answer["error"].lower()
    assert registry.counters.malformed == 1


async def test_a_body_over_16_kib_is_refused(registry, post):
    status, answer = await post(b"x" * (16 * 1024 + 1))
    assert status == 413
    assert "16384" in answer["error"]
    assert registry.counters.too_large == 1


async def test_a_superseded_agent_gets_409(post):
    await post(instance="old")
    await post(instance="new")
    assert await post(instance="old", sequence=2) == (409, {"error": "superseded"})


async def test_a_poll_whose_client_went_away_is_not_held_on(registry):
    async with Intake(application(registry, authenticate)) as intake:
        _, writer = await asyncio.open_connection("127.0.0.1", intake.port)
        body = json.dumps({"protocol": 1, "instance": "i", "sequence": 1, "state": "ready", "wait": 5}).encode()
        head = f"POST /v1/sync HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer good\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await until(lambda: registry.held == 1)
        writer.transport.abort()
        await until(lambda: registry.held == 0)


async def test_the_next_operator_process_can_listen_on_the_same_port(registry):
    async with Intake(application(registry, authenticate)) as first:
        port = first.port
        with pytest.raises(OSError, match="in use"):
            async with Intake(application(registry, authenticate), port=port):
                pass
    async with Intake(application(registry, authenticate), port=port) as second:
        assert second.port == port
