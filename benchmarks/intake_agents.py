"""The agents of benchmarks/intake.py: as many as one process can play, each on a connection of its own."""

import asyncio
import json
import random
import ssl
import time
from typing import Any, Protocol

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

ISSUER = "https://kubernetes.default.svc.cluster.local"
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


class Port(Protocol):
    """Where the operator listens now; another one after its restart."""

    port: int


def pod_uid(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-000000000000"


def token(number: int) -> str:
    """As kubelets project them."""
    claims = {
        "aud": ["torchyard.dev"],
        "exp": int(time.time()) + 3600,
        "iss": ISSUER,
        "kubernetes.io": {
            "namespace": "bench",
            "node": {"name": "node-1", "uid": pod_uid(0)},
            "pod": {"name": f"job-0-{number}", "uid": pod_uid(number)},
            "serviceaccount": {"name": "default", "uid": pod_uid(0)},
        },
        "sub": "system:serviceaccount:bench:default",
    }
    return jwt.encode(claims, KEY, algorithm="RS256", headers={"kid": "one"})


def published() -> dict[str, str]:
    """What an API server publishes about its keys, by path."""
    key = jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key(), as_dict=True)
    key = {name: text for name, text in key.items() if isinstance(text, str)} | {"kid": "one", "use": "sig"}
    return {
        "/.well-known/openid-configuration": json.dumps({"issuer": ISSUER}),
        "/openid/v1/jwks": json.dumps({"keys": [key]}),
    }


class Agent:
    """One agent that polls as the real one does: held for an interval, jittered back-off when it is cut off."""

    def __init__(self, fleet: "Fleet", number: int) -> None:
        self.fleet = fleet
        self.head = (
            f"POST /v1/sync HTTP/1.1\r\nHost: torchyard-intake.torchyard.svc:8443\r\nAccept-Encoding: identity\r\n"
            f"Content-Type: application/json\r\nAuthorization: Bearer {token(number)}\r\nContent-Length: "
        )
        self.instance = f"{number:032x}"
        self.sequence = self.revision = 0
        self.state, self.backoff, self.told = "ready", 0.2, 0.0
        self.line: Line | None = None

    async def connect(self) -> None:
        while self.line is None:
            try:
                async with self.fleet.gate, asyncio.timeout(5):
                    await self.fleet.loop.create_connection(
                        lambda: Line(self),
                        "127.0.0.1",
                        self.fleet.operator.port,
                        ssl=self.fleet.tls,
                        server_hostname="torchyard-intake.torchyard.svc",
                    )
            except (OSError, TimeoutError):
                self.fleet.refused += 1
                await self.pause()

    async def pause(self) -> None:
        await asyncio.sleep(self.backoff * random.uniform(0.5, 1.0))
        self.backoff = min(2 * self.backoff, 10.0)

    async def reconnect(self) -> None:
        await self.pause()
        await self.connect()

    def request(self) -> bytes:
        self.sequence += 1
        ranks = range(self.fleet.ranks)
        document = {
            "protocol": 1,
            "instance": self.instance,
            "sequence": self.sequence,
            "time": time.time(),
            "wait": self.fleet.interval if self.sequence > 1 else 0.0,
            "revision": self.revision,
            "state": self.state,
            "round": int(self.state == "running"),
            "address": "10.0.0.2",
            "masterPort": 41233,
            "procs": len(ranks),
            "gpus": [gpu(rank) for rank in ranks],
            "reports": [report(rank, self.sequence) for rank in ranks],
            "notices": [],
        }
        body = json.dumps(document)
        return f"{self.head}{len(body)}\r\n\r\n{body}".encode()

    def hear(self, answer: dict[str, Any]) -> None:
        self.revision, self.backoff = answer["revision"], 0.2
        if answer["command"]["verb"] == "run" and not self.told:
            self.told = time.time()
        self.fleet.syncs += 1


class Line(asyncio.Protocol):
    """One connection of an agent."""

    def __init__(self, agent: Agent) -> None:
        self.agent, self.buffer = agent, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        if self.agent.line is not None:
            transport.abort()
            return
        self.agent.line = self
        self.agent.fleet.connected += 1
        transport.write(self.agent.request())

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, found, body = self.buffer.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split()[0]) if found else 0
        if not found or len(body) < length:
            return
        self.buffer = b""
        if not head.startswith(b"HTTP/1.1 200"):
            self.agent.fleet.odd.append(self.transport.abort() or head + body)
            return
        self.agent.hear(json.loads(body))
        self.transport.write(self.agent.request())

    def connection_lost(self, _error: Exception | None) -> None:
        if self.agent.line is self:
            self.agent.line = None
            self.agent.fleet.connected -= 1
            if not self.agent.fleet.over:
                self.agent.fleet.spawn(self.agent.reconnect())


def gpu(number: int) -> dict[str, object]:
    return {
        "uuid": f"GPU-6a0c1b6e-0000-4000-8000-00000000000{number}",
        "index": number,
        "product": "NVIDIA H200",
        "memoryTotalBytes": 150754820096,
        "memoryUsedBytes": 90000000000,
        "utilization": 97.0,
        "temperatureC": 61.0,
        "powerW": 640.5,
    }


def report(rank: int, step: int) -> dict[str, object]:
    now = time.time()
    least = {"round": 1, "rank": rank, "localRank": rank, "counter": step, "step": step, "phase": "step"}
    least |= {"phaseSince": now, "time": now}
    if rank:
        return least
    return least | {
        "totalSteps": 5000,
        "epoch": 2.4,
        "metrics": {"loss": 1.93, "learning_rate": 3e-4, "gradient_norm": 0.7},
        "throughput": {"stepsPerSecond": 3.1, "samplesPerSecond": 800.0},
        "checkpoint": {"step": 1, "time": 1.0, "path": "/torchyard/checkpoints/job", "bytes": 1, "saveSeconds": 0.1},
        "warnings": [],
    }


class Fleet:
    """All the agents."""

    def __init__(self, operator: Port, agents: int, ranks: int, tls: ssl.SSLContext, *, interval: float) -> None:
        self.loop, self.operator, self.ranks, self.tls = asyncio.get_running_loop(), operator, ranks, tls
        self.interval = interval
        self.connected = self.refused = self.syncs = 0
        self.over, self.tasks, self.odd = False, set(), []
        # More than this one process can shake hands with at once would time out here, not at the operator.
        self.gate = asyncio.Semaphore(1000)
        self.agents = [Agent(self, number) for number in range(agents)]

    def spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def arrive(self) -> None:
        """Connect, two hundred at a time, as pods of many jobs do."""
        gate = asyncio.Semaphore(200)

        async def one(agent: Agent) -> None:
            async with gate:
                await agent.connect()

        await asyncio.gather(*(one(agent) for agent in self.agents))
