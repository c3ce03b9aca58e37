"""Limits of the intake: slow, greedy and hostile peers cost other agents nothing; a standby says so."""

import asyncio
import contextlib
import json
import time

import pytest
from tests.support.waiting import DEADLINE

from torchyard.agents import server
from torchyard.agents.http import connection
from torchyard.agents.http.admission import Buckets, Limits
from torchyard.agents.registry import AgentRegistry
from torchyard.agents.server import Intake, application
from torchyard.reconcile.actions import CommandAgent

TOKENS = {"good": "pod-a", "other": "pod-b"}


async def authenticate(token):
    return TOKENS.get(token)


class World:
    def __init__(self) -> None:
        self.leading = True
        self.registry = AgentRegistry(time.time, interval=30.0, on_news=lambda _uid: None)

    @contextlib.asynccontextmanager
    async def listening(self, **limits):
        app = application(self.registry, authenticate, serving=lambda: self.leading, limits=Limits(**limits))
        async with Intake(app) as self.intake:
            yield self.intake

    async def connect(self):
        return Peer(*await asyncio.open_connection("127.0.0.1", self.intake.port))


class Peer:
    """A raw connection."""

    def __init__(self, reader, writer) -> None:
        self.reader, self.writer = reader, writer

    def say(self, *, token="good", path="/v1/sync", method="POST", extra="", **fields):
        body = json.dumps({"protocol": 1, "instance": "i", "sequence": 1, "state": "ready"} | fields)
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n{extra}"
        self.writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        return self

    async def answer(self):
        """Status, headers and body of the next answer."""
        async with asyncio.timeout(DEADLINE):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            status, *lines = head.strip().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines)
            body = json.loads(await self.reader.readexactly(int(headers["content-length"])))
        return int(status.split()[1]), headers, body

    async def ended(self) -> bool:
        async with asyncio.timeout(DEADLINE):
            with contextlib.suppress(ConnectionError):
                while await self.reader.read(65536):
                    pass
        return True


async def until(condition):
    async with asyncio.timeout(DEADLINE):
        while not condition():  # noqa: ASYNC110 - the condition belongs to the other side of a socket
            await asyncio.sleep(0.001)


@pytest.fixture
async def world():
    return World()


async def test_a_connection_serves_one_request_after_another(world):
    async with world.listening():
        peer = await world.connect()
        for sequence in range(1, 6):
            assert (await peer.say(sequence=sequence).answer())[0] == 200
        assert world.intake.connections == 1


async def test_requests_sent_in_one_breath_are_answered_in_order(world):
    async with world.listening():
        peer = await world.connect()
        peer.say(sequence=1).say(sequence=2, path="/elsewhere").say(sequence=3, token="bad")
        assert [(await peer.answer())[0] for _ in range(3)] == [200, 404, 403]


async def test_a_request_may_arrive_byte_by_byte(world):
    async with world.listening():
        peer = await world.connect()
        whole = Peer(None, Written())
        for byte in whole.say().writer.data:
            peer.writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert (await peer.answer())[0] == 200


class Written:
    def write(self, data):
        self.data = data


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x00\xa5\x01\x00\x00", 400),
        (b"hello\r\n\r\n", 400),
        (b"POST /v1/sync HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST /v1/sync HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST /v1/sync HTTP/1.1\r\nContent-Length: many\r\n\r\n", 400),
        (b"POST /v1/sync HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", 413),
        (b"POST /v1/sync HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"4001\r\n" + b"x" * 0x4001, 413),
        (b"POST /" + b"x" * 5000 + b" HTTP/1.1\r\n", 414),
        (b"POST /v1/sync HTTP/1.1\r\n" + b"X: " + b"y" * 60_000, 431),
        (b"POST /v1/sync HTTP/1.1\r\n" + b"X: y\r\n" * 10_000, 431),
        (b"GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", 400),
    ],
)
async def test_an_invalid_request_is_rejected_with_a_sentence_and_the_connection_ends(world, sent, status):
    async with world.listening():
        peer, honest = await world.connect(), await world.connect()
        peer.writer.write(sent)
        answered, headers, body = await peer.answer()
        assert answered == status
        assert headers["connection"] == "close"
        assert body["error"].endswith(".")
        assert await peer.ended()
        assert (await honest.say().answer())[0] == 200


async def test_another_path_and_another_method_are_refused(world):
    async with world.listening():
        peer = await world.connect()
        assert (await peer.say(path="/").answer())[0] == 404
        assert (await peer.say(method="PUT").answer())[0] == 405


async def test_a_peer_that_sends_too_slowly_is_cut_off(world, monkeypatch):
    monkeypatch.setattr(server, "SWEEP_SECONDS", 0.02)
    async with world.listening():
        held = await world.connect()
        held.say(wait=30, token="other")
        await until(lambda: world.registry.held == 1)
        # Only from now on: the poll above may be read late on a busy machine.
        monkeypatch.setattr(connection, "REQUEST_SECONDS", 0.2)
        silent, slow = await world.connect(), await world.connect()
        slow.writer.write(b"POST /v1/sync HTTP/1.1\r\n")
        assert await silent.ended()
        assert await slow.ended()
        assert world.registry.held == 1, "a poll that waits for its answer is not slow"


async def test_a_connection_that_asks_nothing_for_long_is_closed(world, monkeypatch):
    monkeypatch.setattr(connection, "IDLE_SECONDS", 0.2)
    monkeypatch.setattr(server, "SWEEP_SECONDS", 0.02)
    async with world.listening():
        peer = await world.connect()
        assert (await peer.say().answer())[0] == 200
        assert await peer.ended()


async def test_a_peer_that_never_reads_its_answers_is_given_no_more(world, monkeypatch):
    monkeypatch.setattr(connection, "REQUEST_SECONDS", 0.5)
    monkeypatch.setattr(server, "SWEEP_SECONDS", 0.02)
    async with world.listening(syncs_per_second=1e9, syncs_burst=1e9):
        env = {f"V{number}": "x" * 4000 for number in range(100)}
        world.registry.command(CommandAgent(pod_uid="pod-a", verb="run", round=1, nodes=1, env=env))
        peer = await world.connect()
        peer.writer.transport.pause_reading()
        for sequence in range(1, 2000):
            peer.say(sequence=sequence)
            await asyncio.sleep(0)
            if not world.intake.connections:
                break
        await until(lambda: not world.intake.connections)
        assert world.registry.counters.syncs < 100, "answers wait for the peer, not in our memory"


async def test_a_pod_that_asks_too_often_gets_the_time_to_come_back(world):
    async with world.listening(syncs_per_second=0.01, syncs_burst=3):
        peer = await world.connect()
        answers = [await peer.say(sequence=sequence).answer() for sequence in range(1, 7)]
        assert [status for status, _, _ in answers] == [200, 200, 200, 429, 429, 429]
        assert 50 < int(answers[-1][1]["retry-after"]) <= 100
        assert (await peer.say(token="other").answer())[0] == 200, "other pods are none the worse for it"
        assert world.registry.counters.limited == 3


async def test_bad_tokens_block_their_address_for_a_while_but_not_its_known_pods(world):
    async with world.listening(refusals_per_second=0.01, refusals_burst=3):
        peer, pod = await world.connect(), await world.connect()
        assert (await pod.say().answer())[0] == 200
        answers = [(await peer.say(token=f"guess-{number}").answer())[0] for number in range(5)]
        assert answers == [403, 403, 403, 429, 429]
        assert (await pod.say(sequence=2).answer())[0] == 200


async def test_connections_are_bounded_in_all_and_for_each_address(world):
    async with world.listening(connections_per_address=2):
        first, second = await world.connect(), await world.connect()
        assert (await first.say().answer())[0] == 200
        assert (await second.say(token="other").answer())[0] == 200
        assert await (await world.connect()).ended()
        assert world.registry.counters.turned_away == 1
        second.writer.close()
        await until(lambda: world.intake.connections == 1)
        assert (await (await world.connect()).say(sequence=2).answer())[0] == 200


async def test_who_does_not_lead_sends_agents_elsewhere(world):
    world.leading = False
    async with world.listening():
        peer = await world.connect()
        status, headers, body = await peer.say().answer()
        assert (status, headers["retry-after"], headers["connection"]) == (503, "1", "close")
        assert "lead" in body["error"]
        assert world.registry.of(["pod-a"]) == {}, "nothing is taken in by one that cannot act on it"


async def test_a_former_leader_ends_every_long_poll(world):
    async with world.listening():
        peer, idle = await world.connect(), await world.connect()
        assert (await idle.say(token="other").answer())[0] == 200
        peer.say(wait=30)
        await until(lambda: world.registry.held == 1)
        world.leading = False
        world.intake.dismiss()
        world.registry.clear()
        assert (await peer.answer())[0] == 503
        assert await peer.ended()
        assert await idle.ended()
        await until(lambda: world.registry.held == 0)


async def test_an_intake_that_ends_answers_what_it_holds(world, monkeypatch):
    monkeypatch.setattr(server, "END_SECONDS", 600)  # what is still open after so long is aborted
    async with world.listening():
        peer = (await world.connect()).say(wait=30)
        await until(lambda: world.registry.held == 1)
    status, headers, _ = await peer.answer()
    assert (status, headers["connection"]) == (503, "close")


async def test_an_error_of_ours_is_answered_and_the_connection_lives(world, monkeypatch, caplog):
    async with world.listening():
        peer = await world.connect()
        monkeypatch.setattr(world.registry, "record", lambda *_: 1 / 0)
        assert (await peer.say().answer())[0] == 500
        assert "ZeroDivisionError" in caplog.text
        monkeypatch.undo()
        assert (await peer.say().answer())[0] == 200


def test_a_bucket_fills_again_and_is_forgotten_last_used_first():
    now = [0.0]
    buckets = Buckets(2.0, 4.0, lambda: now[0], most=2)
    assert [buckets.take("a") for _ in range(5)] == [0, 0, 0, 0, 0.5]
    now[0] += 0.5
    assert buckets.wait("a") == 0
    assert buckets.take("a") == 0
    assert buckets.take("a") == 0.5
    now[0] += 1000
    assert [buckets.take("a") for _ in range(5)] == [0, 0, 0, 0, 0.5], "it holds a burst and no more"
    buckets.take("b")
    buckets.take("c")
    assert buckets.take("a") == 0
