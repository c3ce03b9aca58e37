"""Health and metrics under attack: clients that hold connections open take none from the kubelet."""

import asyncio
import contextlib

import pytest
import uvloop
from aiohttp import web
from tests.support.waiting import DEADLINE

from torchyard.app.page_server import Connections, PageLimits, served

LIMITS = PageLimits(connections=20, connections_per_address=8, seconds=30.0)


def pages():
    async def healthz(_request):
        return web.Response(text="ok\n")

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    return app


async def ask(port, source):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), DEADLINE)
    writer.close()
    return answer


async def test_a_flood_of_requests_that_never_end_keeps_no_probe_from_an_answer():
    async with served(pages(), 0, host="127.0.0.1", limits=LIMITS) as port:
        held = []
        for attacker in range(8):
            for _ in range(12):
                slow = await asyncio.open_connection("127.0.0.1", port, local_addr=(f"127.0.1.{attacker + 1}", 0))
                slow[1].write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ")
                held.append(slow)
        for source in ("127.0.0.1", "127.0.1.1"):
            assert (await ask(port, source)).startswith(b"HTTP/1.1 200")
        pending = {asyncio.create_task(reader.read()) for reader, _ in held}
        while len(pending) > LIMITS.connections:
            done, pending = await asyncio.wait(pending, timeout=DEADLINE, return_when=asyncio.FIRST_COMPLETED)
            assert done, "more connections are open than the bound allows"
        for _, writer in held:
            writer.transport.abort()
        await asyncio.wait(pending)


@pytest.mark.parametrize(
    "sent", [b"", b"GET /hea", b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\nx"]
)
async def test_a_connection_ends_however_slow_it_is(sent):
    async with served(pages(), 0, host="127.0.0.1", limits=PageLimits(seconds=0.2)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        with contextlib.suppress(ConnectionError):  # ends, or is reset
            await asyncio.wait_for(reader.read(), DEADLINE)
        writer.close()


async def test_an_answer_ends_its_connection():
    async with served(pages(), 0, host="127.0.0.1", limits=LIMITS) as port:
        assert b"Connection: close" in await ask(port, "127.0.0.1")


def test_it_answers_on_the_loop_of_the_operator():
    async def once():
        async with served(pages(), 0, host="127.0.0.1", limits=LIMITS) as port:
            return await ask(port, "127.0.0.1")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(once()).startswith(b"HTTP/1.1 200")


class Transport:
    def __init__(self):
        self.aborted = False

    def abort(self):
        self.aborted = True


def test_the_oldest_connection_of_the_busiest_address_goes_first():
    connections = Connections(PageLimits(connections=4, connections_per_address=3))
    made = {}
    for name in ("a1", "a2", "b1", "a3", "c1", "a4"):
        made[name] = Transport()
        connections.add(name[0], made[name])
    assert [name for name, each in made.items() if each.aborted] == ["a1", "a2"]
    assert len(connections) == 4
    connections.remove("c", made["c1"])
    connections.remove("a", made["a1"])  # which is closed already
    assert len(connections) == 3


def test_pages_are_served_on_the_loop_of_the_operator_and_closed_connections_are_forgotten():
    """Transports of uvloop are no subclass of asyncio's."""

    async def work():
        async with served(pages(), 0, host="127.0.0.1", limits=PageLimits(connections_per_address=2)) as port:
            return [await ask(port, "127.0.0.1") for _ in range(8)]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert all(answer.startswith(b"HTTP/1.1 200") for answer in runner.run(work()))
