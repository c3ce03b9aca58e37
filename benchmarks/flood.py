"""Agents that connect while others flood the operator with connections that never show a token.

    python benchmarks/flood.py [--rate 1300] [--addresses 2000] [--hello] [--seconds 15]

The operator's intake, its TLS and its admission are real; it serves on loopback, where every process has 16 million
addresses. A second process opens connections, silent ones or with a ClientHello, and never reads an answer. This one
plays an agent every 0.1 s, each from another address, and measures from its start to the answer. The first answer is
spread over 0.6 s on purpose: compare with `--rate 0`.
"""

import argparse
import asyncio
import contextlib
import json
import resource
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import trustme
import uvloop

HOST = "torchyard-intake.torchyard.svc"
EVERY = 0.1
KEPT = 8000
"""Connections that the flood keeps open; older ones are reset."""


async def serve(folder: Path) -> None:
    """Be the operator's process: print the port, and when stdin ends the CPU seconds and the peak of memory."""
    from torchyard.agents.http.admission import raise_descriptor_limit
    from torchyard.agents.http.tls import server_context
    from torchyard.agents.registry import AgentRegistry
    from torchyard.agents.server import Intake, application

    async def authenticate(token: str) -> str | None:
        return token.removeprefix("pod-") if token.startswith("pod-") else None

    raise_descriptor_limit()
    registry = AgentRegistry(time.time, interval=30.0, on_news=lambda _uid: None)
    async with Intake(application(registry, authenticate), tls=server_context(folder)) as intake:
        say(port=intake.port)
        await asyncio.to_thread(sys.stdin.read)
        used = resource.getrusage(resource.RUSAGE_SELF)
        say(cpu=used.ru_utime + used.ru_stime, memory=used.ru_maxrss >> 10)


def flood(port: int, options: argparse.Namespace) -> None:
    """Open connections at a rate, from one address or several in turn; print how many."""
    from torchyard.agents.http.admission import raise_descriptor_limit

    raise_descriptor_limit()
    hello = client_hello() if options.hello else b""
    opened: deque[socket.socket] = deque()
    begun, count = time.monotonic(), 0
    while (now := time.monotonic() - begun) < options.seconds:
        for _ in range(min(200, int(now * options.rate) - count)):
            number = count % options.addresses
            opened.append(connection(f"127.{10 + number // 62500}.{number // 250 % 250}.{1 + number % 250}", port))
            with contextlib.suppress(OSError):  # not connected yet, or closed already
                opened[-1].send(hello)
            count += 1
            if len(opened) > KEPT:
                opened.popleft().close()
        time.sleep(0.002)
    say(opened=count)


def connection(address: str, port: int) -> socket.socket:
    """Return a socket that is being connected, and is reset when it is closed."""
    made = socket.socket()
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    made.bind((address, 0))
    with contextlib.suppress(BlockingIOError):
        made.connect(("127.0.0.1", port))
    return made


def client_hello() -> bytes:
    """Return the first message of a TLS handshake."""
    answers, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(answers, sent, server_hostname=HOST).do_handshake()
    return sent.read()


async def sync(port: int, trust: ssl.SSLContext, number: int) -> float | None:
    """Return the seconds that an agent waits for the answer to its first sync; None: it gets none in 30 s."""
    begun = time.monotonic()
    body = json.dumps({"protocol": 1, "instance": "i", "sequence": 1, "state": "ready"})
    head = f"POST /v1/sync HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Bearer pod-{number}\r\n"
    own = (f"127.0.{3 + number // 250}.{1 + number % 250}", 0)
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(30):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=trust, server_hostname=HOST, local_addr=own, ssl_handshake_timeout=30
            )
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            answered = b" 200 " in await reader.readline()
            writer.transport.abort()
            return time.monotonic() - begun if answered else None
    return None


async def measure(port: int, folder: Path, seconds: float) -> list[float | None]:
    trust = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    agents = []
    for number in range(int(seconds / EVERY)):
        agents.append(asyncio.create_task(sync(port, trust, number)))
        await asyncio.sleep(EVERY)
    return await asyncio.gather(*agents)


@contextlib.contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[str]]:
    """Run this program in another role."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, __file__, *words], stdin=pipe, stdout=pipe, text=True) as one:
        yield one
        one.stdin.close()
        print(one.stdout.readline().strip())


def say(**document: float) -> None:
    print(json.dumps(document), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=1300, help="connections per second; 0: no flood")
    parser.add_argument("--addresses", type=int, default=2000, help="that they come from, in turn")
    parser.add_argument("--hello", action="store_true", help="each begins a TLS handshake")
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--flood", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        uvloop.run(serve(options.serve))
    elif options.flood:
        flood(options.flood, options)
    else:
        run(options)


def run(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, authority = Path(name), trustme.CA()
        leaf = authority.issue_cert(HOST)
        authority.cert_pem.write_to_path(folder / "ca.pem")
        leaf.private_key_pem.write_to_path(folder / "tls.key")
        for pem in leaf.cert_chain_pems:
            pem.write_to_path(folder / "tls.crt", append=True)
        with process("--serve", name) as operator:
            port = json.loads(operator.stdout.readline())["port"]
            words = ["--rate", str(options.rate), "--addresses", str(options.addresses)]
            words += ["--seconds", str(options.seconds), *(["--hello"] if options.hello else [])]
            with process("--flood", str(port), *words):
                waits = asyncio.run(measure(port, folder, options.seconds))
        served = sorted(wait for wait in waits if wait is not None)
        median, most = served[len(served) // 2], served[int(0.99 * len(served))]
        print(f"{len(served)} of {len(waits)} agents served: median {median:.2f} s, 99 % {most:.2f} s")


if __name__ == "__main__":
    main()
