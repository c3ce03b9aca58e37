"""Leader election on virtual time, against a server whose connections do what they like."""

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.kubernetes.leases import LeaseServer, Wire
from tests.support.virtual_time import virtual_time

from torchyard.kubernetes.client.errors import Fenced
from torchyard.kubernetes.election import DeposedError, Lease, Terms
from torchyard.reconcile.ports import Unavailable

TERMS = Terms()


def candidate(server: LeaseServer, identity: str, wire: Wire | None = None) -> Lease:
    loop = asyncio.get_running_loop()
    return Lease(wire or Wire(server), namespace="ty", name="torchyard", identity=identity, clock=loop.time)


async def end(*tasks: asyncio.Task) -> list:
    for task in tasks:
        task.cancel()
    return await asyncio.gather(*tasks, return_exceptions=True)


@virtual_time
async def test_only_the_first_one_leads():
    server = LeaseServer()
    one, two = candidate(server, "one"), candidate(server, "two")
    tasks = [asyncio.create_task(one.run())]
    await one.acquired()
    tasks.append(asyncio.create_task(two.run()))
    await two.known()
    await asyncio.sleep(3600)
    assert one.leading
    one.fence.check()
    assert not two.leading
    assert two.holder == "one"
    with pytest.raises(Fenced, match="two does not hold the lease"):
        two.fence.check()
    await end(*tasks)


class Text:
    """A note that publishes what a test says."""

    def __init__(self):
        self.own, self.former = "", ""

    def published(self):
        return self.own or self.former

    def read(self, text):
        self.former = text


@virtual_time
async def test_a_new_leader_finds_what_the_former_one_left_in_the_lease():
    server, loop = LeaseServer(), asyncio.get_running_loop()
    notes = {"one": Text(), "two": Text()}

    def noting(identity):
        note = {"until": notes[identity]}
        return Lease(Wire(server), namespace="ty", name="torchyard", identity=identity, notes=note, clock=loop.time)

    one, two = noting("one"), noting("two")
    tasks = [asyncio.create_task(one.run()), asyncio.create_task(two.run())]
    await one.acquired()
    notes["one"].own = "5"
    await asyncio.sleep(5)
    await end(tasks[0])
    await two.acquired()
    assert notes["two"].former == "5", "a candidate reads it before it writes its own"
    await end(tasks[1])


@pytest.mark.parametrize("phase", [0.0, 0.4, 0.9, 1.3, 1.9])
@virtual_time
async def test_a_killed_leader_is_replaced_within_15_seconds(phase):
    server, loop = LeaseServer(), asyncio.get_running_loop()
    one, two = candidate(server, "one"), candidate(server, "two")
    first = asyncio.create_task(one.run())
    await one.acquired()
    await asyncio.sleep(20 + phase)
    second = asyncio.create_task(two.run())
    await asyncio.sleep(20)
    await end(first)
    killed = loop.time()
    await two.acquired()
    assert loop.time() - killed <= 15
    assert one.leading is False, "it must have stopped writing long before"
    await end(second)


@virtual_time
async def test_a_leader_that_stops_cleanly_is_replaced_within_a_second():
    server, loop = LeaseServer(), asyncio.get_running_loop()
    one, two = candidate(server, "one"), candidate(server, "two")
    tasks = [asyncio.create_task(one.run()), asyncio.create_task(two.run())]
    await one.acquired()
    await asyncio.sleep(10)
    await end(tasks[0])
    await one.release()
    assert not one.leading
    released = loop.time()
    await two.acquired()
    assert loop.time() - released <= 1.1
    await end(tasks[1])


@virtual_time
async def test_a_release_counts_even_if_a_renewal_was_under_way():
    server = LeaseServer()
    back = 0.01
    one = candidate(server, "one", Wire(server, lambda: (0.01, back)))
    task = asyncio.create_task(one.run())
    await one.acquired()
    back = 1.0  # the next renewal is committed, but its answer is still on its way
    version = server.version
    while server.version == version:  # noqa: ASYNC110 -- virtual time
        await asyncio.sleep(0.1)
    await end(task)
    await one.release()
    assert server.holder is None


@virtual_time
async def test_a_restarted_process_of_the_same_pod_takes_its_lease_over_at_once():
    server, loop = LeaseServer(), asyncio.get_running_loop()
    before = candidate(server, "pod-a")
    task = asyncio.create_task(before.run())
    await before.acquired()
    await end(task)
    started = loop.time()
    after = candidate(server, "pod-a")
    task = asyncio.create_task(after.run())
    await after.acquired()
    assert loop.time() - started < 1
    await end(task)


@virtual_time
async def test_an_api_server_that_was_away_for_a_minute_leaves_the_leader_in_office_but_silent_until_it_is_back():
    server = LeaseServer()
    away = False
    one = candidate(server, "one", Wire(server, lambda: (None, None) if away else (0.01, 0.01)))
    task = asyncio.create_task(one.run())
    await one.acquired()
    away = True
    await one.lapsed()
    with pytest.raises(Fenced):
        one.fence.check()
    await asyncio.sleep(60)
    assert not one.leading
    away = False
    await one.acquired()
    one.fence.check()
    await end(task)


@virtual_time
async def test_a_leader_that_was_cut_off_learns_that_it_is_deposed():
    server = LeaseServer()
    cut = False
    one = candidate(server, "one", Wire(server, lambda: (None, None) if cut else (0.01, 0.01)))
    two = candidate(server, "two")
    tasks = [asyncio.create_task(one.run()), asyncio.create_task(two.run())]
    await one.acquired()
    cut = True
    await two.acquired()
    assert not one.leading
    cut = False
    with pytest.raises(DeposedError, match="two took over the lease of one"):
        await tasks[0]
    assert two.leading
    await end(*tasks)


@virtual_time
async def test_a_deleted_lease_is_made_again():
    server = LeaseServer()
    one = candidate(server, "one")
    task = asyncio.create_task(one.run())
    await one.acquired()
    server.lease = None
    await asyncio.sleep(2 * TERMS.writing)
    assert one.leading
    assert server.holder == "one"
    await end(task)


@virtual_time
async def test_words_of_refusal_end_up_in_the_log_once(caplog):
    class Refusing:
        async def request(self, *_: object, **__: object) -> bytes:
            raise Unavailable("GET /leases: 503 etcd is away")

    lease = candidate(LeaseServer(), "one", Refusing())
    task = asyncio.create_task(lease.run())
    await asyncio.sleep(60)
    await end(task)
    assert [record.getMessage() for record in caplog.records] == [
        "the lease cannot be read or renewed, retrying: GET /leases: 503 etcd is away"
    ]


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), loss=st.floats(0, 0.6), slow=st.sampled_from([0.05, 1.0, 3.0]))
@virtual_time
async def test_two_leaders_never_write_at_once_under_network_faults(seed, loss, slow):
    """Ten minutes of lost, late and half-done requests, cuts, stopped and killed processes."""
    dice = random.Random(seed)
    server = LeaseServer()
    cut: set[str] = set()

    def wire(identity: str) -> Wire:
        def way() -> float | None:
            return None if identity in cut or dice.random() < loss else dice.uniform(0.0, slow)

        return Wire(server, lambda: (way(), way()))

    processes: dict[str, tuple[Lease, asyncio.Task]] = {}
    leases: dict[str, Lease] = {}  # those of stopped processes too: they may wake up at any time

    def start(identity: str) -> None:
        lease = candidate(server, identity, wire(identity))
        leases[identity] = lease
        processes[identity] = lease, asyncio.create_task(lease.run())

    for each in ("one", "two", "three"):
        start(each)
    led = False
    for turn in range(3000):
        await asyncio.sleep(0.2)
        writing = [identity for identity, lease in leases.items() if lease.leading]
        assert len(writing) <= 1, writing
        led = led or bool(writing)
        identity = dice.choice(list(processes))
        if turn % 50 == 0:
            cut ^= {identity}
        if turn % 130 == 0:
            await end(processes.pop(identity)[1])
            start(f"{identity}'")
    assert led or loss > 0.3 or slow > 1
    await end(*(task for _, task in processes.values()))
