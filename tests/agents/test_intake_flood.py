"""Floods of connections that show no token: they cost little, and agents that have one are served all the time."""

import asyncio
import contextlib
import json
import ssl
import time

import pytest
import trustme
import uvloop
from tests.support.waiting import DEADLINE

from torchyard.agents.http import acceptor, admission, tls
from torchyard.agents.http.admission import Admission, Limits
from torchyard.agents.registry import AgentRegistry
from torchyard.agents.server import Intake, application

HOST = "torchyard-intake.torchyard.svc"
FLOOD, ROOM = 20, 8
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
        async with asyncio.timeout(DEADLINE):
            status = int((await reader.readline()).split()[1])
            length = 0
            while line := (await reader.readline()).strip():
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split()[1])
            await reader.readexactly(length)
        return status

    @property
    def unproven(self):
        return self.intake._admission.unproven


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


def test_invalid_tokens_prove_nothing(loop, authority, folder):
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
    assert acceptor.HANDSHAKE_SECONDS == 3.0
    monkeypatch.setattr(acceptor, "HANDSHAKE_SECONDS", 0.1)

    async def check():
        site = Site(authority, folder)
        async with site.listening():
            reader, _ = await site.connect(ATTACKER)
            async with asyncio.timeout(DEADLINE):
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
            async with asyncio.timeout(DEADLINE):
                while not site.registry.held:  # noqa: ASYNC110 -- counted by the other side
                    await asyncio.sleep(0.001)
            assert site.unproven == 0
            held.cancel()

    with loop:
        loop.run(check())


def test_silent_connections_from_many_addresses_hold_nothing_up_and_get_no_tls(loop, authority, folder, monkeypatch):
    """Were a place waited for until handshakes time out, the agent would not be served in this test."""
    monkeypatch.setattr(acceptor, "HANDSHAKE_SECONDS", 600.0)
    monkeypatch.setattr(admission, "PATIENCE_SECONDS", 0.0)

    async def check():
        site = Site(authority, folder)
        async with site.listening(unproven=ROOM):
            for number in range(FLOOD):
                await site.connect(f"127.0.1.{number}")
            assert await site.sync(await site.connect(AGENT, trust=site.trust)) == 200
            assert not site.intake._handshakes
            assert site.unproven <= ROOM

    with loop:
        loop.run(check())


class Door:
    """Admission on a clock that the test sets; notes which connections it closed, in order."""

    def __init__(self, **limits):
        self.now, self.closed = 1000.0, []
        self.admission = Admission(Limits(**limits), lambda: self.now)

    def enter(self, address, name=None, *, owed=False):
        return self.admission.enter(address, lambda: self.closed.append(name or address), lambda: owed)

    def shake(self, *addresses):
        """Queue one connection of each address for its handshake; return the addresses in the order of their turns."""
        for address in addresses:
            self.admission.handshakes.add(self.enter(address))
        return [slot.address for slot in iter(self.admission.handshakes.next, None)]


def test_many_addresses_wait_for_each_other_and_none_is_cut():
    """As after a restart of the operator, when every agent comes back at once."""
    door = Door(unproven=2)
    first, _ = door.enter("a", owed=True), door.enter("b", owed=True)
    door.now += 60
    assert door.admission.wait("c") > 0, "both wait for the operator"
    door.admission.prove(first)
    assert door.admission.wait("c") == 0
    assert door.enter("c")
    assert door.admission.wait("d") > 0
    assert door.closed == []


def test_who_leaves_the_operator_waiting_makes_room_for_a_new_address():
    door = Door(unproven=3)
    slots = [door.enter("a"), door.enter("b", owed=True), door.enter("c")]
    door.now += admission.PATIENCE_SECONDS / 2
    door.admission.progress(slots[0])
    assert door.admission.wait("d") > 0
    door.now += admission.PATIENCE_SECONDS / 2
    assert door.admission.wait("d") == 0
    assert door.enter("d")
    assert door.closed == ["c"]


def test_an_address_without_handshakes_for_nothing_overtakes_those_that_had_some():
    door = Door()
    door.shake(*["flood"] * 40, *["few"] * 3)
    door.now += 0.1
    assert door.shake("flood", "few", "new") == ["new", "few", "flood"]
    door.now += 1000
    assert door.shake("flood", "new") == ["flood", "new"], "it is forgiven"


def test_handshakes_of_suspects_are_paced_and_a_valid_token_clears_an_address():
    door = Door(unproven=10_000, connections_per_address=10_000)
    turns = door.shake(*["flood"] * 200)
    assert 32 <= len(turns) < 60
    assert 0 < door.admission.handshakes.wait() < 0.1
    assert door.shake("agent") == ["agent"]
    for _ in range(200):
        slot = door.enter("many agents")
        door.admission.handshakes.add(slot)
        assert door.admission.handshakes.next() is slot
        door.admission.prove(slot)


@pytest.mark.parametrize(("same", "other"), [("2001:db8::1", "2001:db8::2"), ("192.0.2.1", "192.0.2.1")])
def test_a_host_has_one_priority_for_all_its_addresses(same, other):
    door = Door()
    door.shake(*[same] * 2)
    handshakes = door.admission.handshakes
    assert handshakes.priority(other) == handshakes.priority(same) != handshakes.priority("2001:db8:0:1::1")
    assert handshakes.priority("::ffff:192.0.2.7") == handshakes.priority("192.0.2.7") == 0


def test_a_new_address_replaces_one_in_debt_that_waits_for_its_handshake():
    door = Door(unproven=2)
    door.shake("a", "b")
    for slot in tuple(door.admission._unproven._by_step):
        door.admission.leave(slot)
    for address in ("a", "b"):
        door.admission.handshakes.add(door.enter(address, owed=True))
    assert door.admission.wait("new") == 0
    assert door.enter("new")
    assert door.closed == ["b"]


def test_the_oldest_of_the_greediest_address_makes_room():
    door = Door(unproven=4)
    for name in ("a1", "b1", "a2", "a3"):
        assert door.enter(name[0], name)
    assert door.admission.wait("c") == 0
    assert door.enter("c")
    assert door.enter("a") is None, "no other address has more"
    assert door.closed == ["a1"]


def test_proven_connections_are_never_closed_for_others():
    door = Door(connections=3, connections_per_address=2)
    for _ in range(2):
        door.admission.prove(door.enter("a"))
    assert door.enter("a") is None
    door.admission.prove(door.enter("b"))
    assert door.enter("c") is None
    assert door.closed == []


def test_a_connection_that_leaves_twice_is_counted_out_once():
    door = Door(connections_per_address=1)
    for _ in range(3):
        slot = door.enter("a")
        assert slot is not None
        door.admission.leave(slot)
        door.admission.leave(slot)
    assert (door.admission._count, door.admission.unproven, door.admission._taken) == (0, 0, {})


@pytest.mark.parametrize(("files", "most"), [(1024, 512), (20_512, 20_000), (10**6, 20_000), (100, 64)])
def test_descriptors_are_left_for_all_else(monkeypatch, files, most):
    monkeypatch.setattr(admission, "_descriptors", lambda: files)
    assert Admission(Limits()).most == most
