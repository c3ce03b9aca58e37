"""Cost of agents for the operator: memory a connection, CPU a sync, time to reach a gang, a restart's storm.

    python benchmarks/intake.py [--agents 8000] [--seconds 30] [--ranks 1] [--key ecdsa] [--peer]

Everything is real but the agents, the API server and the jobs: TLS, tokens, HTTP, the registry. One operator process
holds every agent's poll, this process plays the agents. CPU and memory are the operator's own, from /proc. With --peer,
the same registry is also served by aiohttp's web server, and each figure is given for both (decision 34).
"""

import argparse
import asyncio
import json
import os
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import trustme
import uvloop
from intake_agents import Fleet, pod_uid, published

GANG = 1000
DEADLINE_SECONDS = 900.0  # ends only what hangs
TICKS = os.sysconf("SC_CLK_TCK")


# The operator's process.


async def serve(folder: Path, port: int, server: str) -> None:
    from torchyard.agents.auth.signatures import Signatures
    from torchyard.agents.auth.tokens import Tokens
    from torchyard.agents.http.admission import Limits
    from torchyard.agents.http.tls import server_context
    from torchyard.agents.registry import AgentRegistry
    from torchyard.agents.server import application
    from torchyard.app.memory_tuning import leave_caches_alone
    from torchyard.reconcile.actions import CommandAgent
    from torchyard.reconcile.ports import Unavailable

    tls = server_context(folder)

    pages = json.loads((folder / "published.json").read_text())

    async def get(path: str) -> bytes:
        return pages[path].encode()

    async def review(_token: str, _audience: str) -> bytes:
        raise Unavailable("no token of the benchmark is in doubt")

    member = SimpleNamespace(namespace="bench", account="default")
    tokens = Tokens(review, lambda _uid: member, vouch=Signatures(get).vouch)
    registry = AgentRegistry(time.time, interval=10.0, on_news=lambda _uid: None)
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    # All agents of the benchmark share one address.
    app = application(registry, tokens.authenticate, limits=Limits(connections_per_address=20_000))
    async with SERVERS[server](app, port, tls) as listens_on:
        say(port=listens_on)
        leave_caches_alone()  # as an operator does
        while line := await lines.readline():
            started = time.time()
            for number in range(json.loads(line)["open"]):
                uid = pod_uid(number)
                registry.command(
                    CommandAgent(
                        pod_uid=uid,
                        verb="run",
                        round=1,
                        nodes=GANG,
                        node_rank=number,
                        master_address="10.0.0.1",
                        master_port=29500,
                        procs=1,
                    )
                )
            say(started=started, gave=time.time())


@asynccontextmanager
async def our_server(app: Any, port: int, tls: ssl.SSLContext) -> AsyncIterator[int]:
    from torchyard.agents.server import Intake

    async with Intake(app, port=port, tls=tls) as intake:
        yield intake.port


@asynccontextmanager
async def aiohttp_server(app: Any, port: int, tls: ssl.SSLContext) -> AsyncIterator[int]:
    """Serve the same handler with aiohttp, as its documentation advises, without the limits of ours."""
    from aiohttp import web

    from torchyard.agents.http.connection import Request
    from torchyard.agents.registry import MAX_BODY_BYTES

    async def answer(http: web.Request) -> web.Response:
        token, body = http.headers.get("Authorization", ""), await http.read()
        request = Request(http.method, http.path, token, body, http.remote or "", lambda: None)
        response = await app.handle(request)
        return web.Response(
            status=response.status, body=msgspec.json.encode(response.document), content_type="application/json"
        )

    site = web.Application(client_max_size=MAX_BODY_BYTES)
    site.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(site, access_log=None, keepalive_timeout=90.0, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls, backlog=4096).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


SERVERS = {"torchyard": our_server, "aiohttp": aiohttp_server}


def row(name: str, value: str) -> None:
    print(f"| {name} | {value} |", flush=True)


def say(**document: object) -> None:
    print(json.dumps(document), flush=True)


class Operator:
    """The operator's process, seen from outside."""

    def __init__(self, folder: Path, server: str) -> None:
        self.folder, self.server, self.port = folder, server, 0

    async def start(self) -> None:
        arguments = (__file__, "--serve", str(self.folder), str(self.port), self.server)
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdin=pipe, stdout=pipe)
        self.port = (await self.heard())["port"]

    async def heard(self) -> dict[str, Any]:
        return json.loads(await self.process.stdout.readline())

    async def open_round(self, members: int) -> dict[str, Any]:
        self.process.stdin.write(json.dumps({"open": members}).encode() + b"\n")
        return await self.heard()

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()

    @property
    def cpu(self) -> float:
        """Seconds, user and system."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    @property
    def rss(self) -> float:
        """KiB."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return float(text.partition("VmRSS:")[2].split()[0])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition():  # noqa: ASYNC110 -- agents make it true
            await asyncio.sleep(0.02)


async def play(folder: Path, arguments: argparse.Namespace, authority: trustme.CA, server: str) -> None:
    tls = ssl.create_default_context()
    authority.configure_trust(tls)
    operator = Operator(folder, server)
    await operator.start()
    load = f"{arguments.agents} agents, {arguments.ranks} ranks each, {arguments.key} certificate"
    print(f"\n{load}, HTTP by {server}\n", flush=True)
    fleet = Fleet(operator, arguments.agents, arguments.ranks, tls, interval=arguments.interval)
    empty, cpu = operator.rss, operator.cpu
    await fleet.arrive()
    await asyncio.sleep(1.5 * arguments.interval)
    row("handshake and first sync, CPU", f"{(operator.cpu - cpu) / arguments.agents * 1e6:.0f} us")
    fleet.syncs, cpu, started = 0, operator.cpu, time.monotonic()
    await asyncio.sleep(arguments.seconds)
    used, syncs, seconds = operator.cpu - cpu, fleet.syncs, time.monotonic() - started
    row("operator without agents", f"{empty / 1024:.0f} MiB")
    row("memory a connection", f"{(operator.rss - empty) / arguments.agents:.1f} KiB")
    row("CPU a sync", f"{used / syncs * 1e6:.0f} us ({syncs / seconds:.0f} syncs/s)")

    gang = fleet.agents[: min(GANG, arguments.agents)]
    opened = await operator.open_round(len(gang))
    await until(lambda: all(agent.told for agent in gang))
    last = max(agent.told for agent in gang) - opened["started"]
    middle = statistics.median(agent.told for agent in gang) - opened["started"]
    row(f"round opened to all {len(gang)} informed", f"{last * 1e3:.0f} ms (median {middle * 1e3:.0f} ms)")

    await operator.kill()
    await until(lambda: not fleet.connected)
    down = time.monotonic()
    fleet.refused = 0
    await operator.start()
    began = time.monotonic()
    await until(lambda: fleet.connected == arguments.agents)
    row("restart: operator away", f"{began - down:.2f} s")
    row("restart: all agents back after", f"{time.monotonic() - began:.2f} s")
    row("restart: operator's CPU till then", f"{operator.cpu:.2f} s")
    row("restart: attempts refused", f"{fleet.refused}")
    fleet.over = True
    await operator.kill()
    if fleet.odd:
        print(f"{len(fleet.odd)} odd answers, the first: {fleet.odd[0]!r}")


@contextmanager
def certificates(key: str) -> Iterator[tuple[Path, trustme.CA]]:
    kind = {"ecdsa": trustme.KeyType.ECDSA, "rsa": trustme.KeyType.RSA}[key]
    authority = trustme.CA(key_type=kind)
    leaf = authority.issue_cert("torchyard-intake.torchyard.svc", key_type=kind)
    with tempfile.TemporaryDirectory() as folder:
        leaf.private_key_pem.write_to_path(Path(folder) / "tls.key")
        for blob in leaf.cert_chain_pems:
            blob.write_to_path(Path(folder) / "tls.crt", append=True)
        (Path(folder) / "published.json").write_text(json.dumps(published()))
        yield Path(folder), authority


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--agents", type=int, default=8000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--interval", type=float, default=10.0, help="seconds for which a poll of an agent is held")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--key", choices=("ecdsa", "rsa"), default="ecdsa")
    parser.add_argument("--peer", action="store_true", help="also measure aiohttp's web server in place of ours")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        folder, port, server = arguments.serve
        uvloop.run(serve(Path(folder), int(port), server))
        return
    with certificates(arguments.key) as (folder, authority):
        for server in SERVERS if arguments.peer else ("torchyard",):
            uvloop.run(play(folder, arguments, authority, server))


if __name__ == "__main__":
    main()
