"""Floods of connections that show no token: they cost little, and agents that have one are served all the time."""

import asyncio
import contextlib
import json
import ssl
import time

import pytest
import trustme
import uvloop

from torchyard.agents import server
from torchyard.agents.http import admission, tls
from torchyard.agents.http.admission import Admission, Limits
from torchyard.agents.registry import AgentRegistry
from torchyard.agents.server import Intake, application

HOST = "torchyard-intake.torchyard.svc"
FLOOD, ROOM = 40, 8
ATTACKER, AGENT = "127.0.0.2", "127.0.0.3"


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request):
    """The operator runs on uvloop, local runs on asyncio."""
    return asyncio.Runner(loop_factory=uvloop.new_event_loop if request.param == "uvloop" else None)


@pytest.fixture
def authority():
    return trustme.CA()


@pytest.fixture
def folder(tmp_path, authority):
    leaf = authority.issue_cert(HOST)
    leaf.private_key_pem.write_to_path(tmp_path / "tls.key")
    for pem in leaf.cert_chain_pems:
        pem.write_to_path(tmp_path / "tls.crt", append=True)
    return tmp_path


async def authenticate(token):
    return "pod-a" if token == "good" else None


class Site:
    """An intake over TLS, and peers of it by address."""

    def __init__(self, authority, folder):
        self.trust = ssl.create_default_context()
        authority.configure_trust(self.trust)
        self.folder = folder
        self.registry = AgentRegistry(time.time, interval=30.0, on_news=lambda _uid: None)
        self.writers = []

    @contextlib.asynccontextmanager
    async def listening(self, **limits):
        app = application(self.registry, authenticate, limits=Limits(**limits))
        async with Intake(app, tls=tls.server_context(self.folder)) as self.intake:
            yield self.intake
        for writer in self.writers:
            writer.transport.abort()

    async def connect(self, address, *, trust=None):
        options = {"ssl": trust, "server_hostname": HOST} if trust else {}
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.intake.port, local_addr=(address, 0), **options
        )
        self.writers.append(writer)
        return reader, writer

    async def sync(self, peer, token="good", **fields):
        reader, writer = peer
        body = json.dumps({"protocol": 1, "instance": "i", "sequence": 1, "state": "ready"} | fields)
        head = f"POST /v1/sync HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: {len(body)}"
        writer.write(f"{head}\r\n\r\n{body}".encode())
        async with asyncio.timeout(10):
            status = int((await reader.readline()).split()[1])
            length = 0
            while line := (await reader.readline()).strip():
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split()[1])
            await reader.readexactly(length)
        return status

    @property
    def unproven(self):
        return self.intake._admission._unproven_count


@pytest.mark.parametrize("speaks_tls", [False, True], ids=["before the handshake", "after it, without a token"])
def test_a_flood_from_one_address_leaves_room_for_agents(loop, authority, folder, speaks_tls):
    async def check():
        site = Site(authority, folder)
        async with site.listening(unproven=ROOM):
            proven = await site.connect(ATTACKER, trust=site.trust)
            assert await site.sync(proven) == 200
            for _ in range(FLOOD):
                with contextlib.suppress(OSError):
                    peer = await site.connect(ATTACKER, trust=site.trust if speaks_tls else None)
                    assert speaks_tls or peer
                assert site.unproven <= ROOM
                assert len(site.intake._handshakes) <= 2 * ROOM, "those that were cut end at once"
            assert await site.sync(await site.connect(AGENT, trust=site.trust), sequence=2) == 200
            assert await site.sync(proven, sequence=3) == 200, "it has shown a token, and stays"

    with loop:
        loop.run(check())


def test_tokens_that_are_no_good_prove_nothing(loop, authority, folder):
    async def check():
        site = Site(authority, folder)
        async with site.listening(unproven=ROOM):
            for _ in range(2 * ROOM):
                with contextlib.suppress(OSError, asyncio.IncompleteReadError, IndexError):
                    await site.sync(await site.connect(ATTACKER, trust=site.trust), token="bad")
            assert site.unproven <= ROOM
            assert await site.sync(await site.connect(AGENT, trust=site.trust)) == 200

    with loop:
        loop.run(check())


def test_a_handshake_that_does_not_come_is_given_up(loop, authority, folder, monkeypatch):
    assert server.HANDSHAKE_SECONDS == 3.0
    monkeypatch.setattr(server, "HANDSHAKE_SECONDS", 0.1)

    async def check():
        site = Site(authority, folder)
        async with site.listening():
            reader, _ = await site.connect(ATTACKER)
            async with asyncio.timeout(10):
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
                while site.unproven:  # noqa: ASYNC110 -- counted by the other side
                    await asyncio.sleep(0.001)
            assert site.registry.counters.failed_handshakes == 1

    with loop:
        loop.run(check())


def test_a_poll_that_is_held_is_proven_by_its_token(loop, authority, folder):
    async def check():
        site = Site(authority, folder)
        async with site.listening(unproven=ROOM):
            peer = await site.connect(ATTACKER, trust=site.trust)
            held = asyncio.create_task(site.sync(peer, wait=30))
            async with asyncio.timeout(10):
                while not site.registry.held:  # noqa: ASYNC110 -- counted by the other side
                    await asyncio.sleep(0.001)
            assert site.unproven == 0
            held.cancel()

    with loop:
        loop.run(check())


def closed():
    """How a test sees which connections were closed, in order."""
    found = []
    return found, lambda name: lambda: found.append(name)


async def test_many_addresses_wait_for_each_other_and_none_is_cut():
    """As after a restart of the operator, when every agent comes back at once."""
    taken = Admission(Limits(unproven=2))
    ended, close = closed()
    first = await taken.enter("a", close("a"), seconds=0)
    await taken.enter("b", close("b"), seconds=0)
    waiting = asyncio.create_task(taken.enter("c", close("c"), seconds=60))
    await asyncio.sleep(0)
    assert not waiting.done()
    taken.prove(first)
    assert await waiting is not None
    assert await taken.enter("d", close("d"), seconds=0) is None
    assert ended == []


async def test_the_oldest_of_the_greediest_address_makes_room():
    taken = Admission(Limits(unproven=4))
    ended, close = closed()
    for name in ("a1", "b1", "a2", "a3"):
        assert await taken.enter(name[0], close(name), seconds=0)
    assert await taken.enter("c", close("c"), seconds=60)
    assert await taken.enter("a", close("a4"), seconds=60) is None, "no other address has more"
    assert ended == ["a1"]


async def test_proven_connections_are_never_closed_for_others():
    taken = Admission(Limits(connections=3, connections_per_address=2))
    ended, close = closed()
    for number in range(2):
        taken.prove(await taken.enter("a", close(number), seconds=0))
    assert await taken.enter("a", close("a"), seconds=0) is None
    taken.prove(await taken.enter("b", close("b"), seconds=0))
    assert await taken.enter("c", close("c"), seconds=0) is None
    assert ended == []


async def test_a_connection_that_leaves_twice_is_counted_out_once():
    taken = Admission(Limits(connections_per_address=1))
    for _ in range(3):
        slot = await taken.enter("a", lambda: None, seconds=0)
        assert slot is not None
        taken.leave(slot)
        taken.leave(slot)
    assert (taken._count, taken._unproven_count, taken._taken, taken._unproven) == (0, 0, {}, {})


@pytest.mark.parametrize(("files", "most"), [(1024, 512), (20_512, 20_000), (10**6, 20_000), (100, 64)])
def test_descriptors_are_left_for_all_else(monkeypatch, files, most):
    monkeypatch.setattr(admission, "_descriptors", lambda: files)
    assert Admission(Limits()).most == most
