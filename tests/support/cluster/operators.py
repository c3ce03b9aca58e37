"""Operators as processes of this machine, each for one namespace of the cluster under test."""

import asyncio
import contextlib
import datetime as dt
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from tests.support.warm_commands import WarmCommand, WarmCommands

from torchyard.kubernetes.client.api import Api
from torchyard_agent.workers.ports import ReservedPort

PATIENCE = 900.0
"""Seconds that a test waits for a cluster: enough for a busy machine, since this limit only ends a hang."""
LOOKS = (0.05, 0.5)
"""Seconds between two looks at a condition, at least and at most."""
LATER = 0.05
"""By which part of a wait its end may be noticed later."""
AGENT_IMAGE = os.environ.get("TORCHYARD_AGENT_IMAGE", "torchyard/operator:dev")
TRAINER_IMAGE = os.environ.get("TORCHYARD_TRAINER_IMAGE", "torchyard/trainer-cpu:dev")
MAIN = ("-m", "torchyard.cli.main")
WARM = WarmCommands("cluster")
"""Forks operators and commands: a test run has a hundred of them, whose imports would take a second each."""
# The same where the clock on the wall is so many seconds ahead.
AHEAD = """
import sys, time
right = time.time
time.time = lambda: right() + {seconds}
from torchyard.cli.main import main
sys.exit(main())
"""


class Operator:
    """One `torchyard operator`, not started yet.

    Args:
        folder: for its log.
        namespace: it manages, and that its Lease is in.
        tls: folder of certificates for `address`.
        address: where pods reach this machine.
        name: of its log.
        pod: its identity among several, as POD_NAME is to one that runs in a pod and is started again in its place.
        kubeconfig: another way to the API server than the tests'.
        flags: further ones.
    """

    def __init__(
        self,
        folder: Path,
        namespace: str,
        *,
        tls: Path,
        address: str,
        name: str = "operator",
        pod: str = "",
        kubeconfig: Path | None = None,
        flags: tuple[str, ...] = (),
    ) -> None:
        self.name, self.log = name, folder / f"{name}.log"
        self._held = (ReservedPort(), ReservedPort())
        self.intake_port, self.probe_port = (port.number() for port in self._held)
        self._kubeconfig, self._pod = kubeconfig, pod
        self._command = [
            "operator",
            *("--namespace", namespace, "--lease-namespace", namespace),
            *("--tls-dir", str(tls), "--intake-url", f"https://{address}:{self.intake_port}"),
            *("--intake-port", str(self.intake_port), "--probe-port", str(self.probe_port)),
            *("--agent-image", AGENT_IMAGE, "--trainer-image", TRAINER_IMAGE),
            *flags,
        ]
        self.process: subprocess.Popen[bytes] | WarmCommand | None = None
        self.logs_json = True

    def start(self, *flags: str, ahead: float = 0.0, source: Path | None = None) -> None:
        """Start it, or start it again.

        Args:
            flags: further ones.
            ahead: seconds by which its clock is ahead.
            source: a repository whose code it runs; None: this one.
        """
        # An earlier version may not know these flags, and one log has one format.
        self.logs_json &= source is None
        flags += ("--log-format", "json") if self.logs_json else ()
        flags += ("--metrics", "open") if source is None else ()
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("TORCHYARD_", "POD_"))}
        if self._kubeconfig is not None:
            environ["KUBECONFIG"] = str(self._kubeconfig)
        environ.pop("PYTHONDONTWRITEBYTECODE", None)  # its image holds bytecode
        if self._pod:
            environ["POD_NAME"] = self._pod
        if source is not None:
            environ["PYTHONPATH"] = code_of(source)
        words = [*self._command, *flags]
        for port in self._held:
            port.lend()
        with self.log.open("ab") as log:
            if not ahead and source is None and WARM.can_run(environ):
                self.process = WARM.start(words, Path.cwd(), environ, log, log)
                return
            program = ("-c", AHEAD.format(seconds=ahead)) if ahead else MAIN
            self.process = subprocess.Popen(
                [sys.executable, *program, *words],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def runs(self) -> bool:
        """Whether its process is there."""
        return self.process is not None and self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def kill(self) -> None:
        """SIGKILL."""
        self.signal(signal.SIGKILL)
        await self.ended()

    async def terminate(self) -> float:
        """SIGTERM; seconds until it ended."""
        begun = time.monotonic()
        self.signal(signal.SIGTERM)
        await self.ended()
        return time.monotonic() - begun

    async def ended(self) -> int:
        """Its exit code, once there is one."""
        assert self.process is not None
        return await asyncio.wait_for(asyncio.to_thread(self.process.wait), PATIENCE)

    def stop(self) -> None:
        """Leave nothing behind, in whatever state it is."""
        if self.runs:
            assert self.process is not None
            self.process.kill()
            self.process.wait(PATIENCE)

    async def page(self, path: str) -> tuple[int, str]:
        """Return status and text of a probe; (0, why) if no process answers."""
        url = f"http://127.0.0.1:{self.probe_port}{path}"
        try:
            async with aiohttp.ClientSession() as session, session.get(url, timeout=60) as response:
                return response.status, await response.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            return 0, repr(error)

    async def ready(self) -> "Operator":
        """Wait until it is."""
        await until(self._is_ready, why=lambda: f"{self.name} is not ready:\n{self.log.read_text()[-3000:]}")
        return self

    async def figure(self, name: str) -> float:
        """The sum of a metric over its labels."""
        _, text = await self.page("/metrics")
        lines = (line for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{")))
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    async def leads(self) -> bool:
        return await self.figure("torchyard_leader") == 1

    async def _is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"{self.name} ended:\n{self.log.read_text()[-3000:]}"
        return (await self.page("/readyz"))[0] == 200


def code_of(source: Path) -> str:
    """Return the PYTHONPATH of a repository's operator and agent."""
    return os.pathsep.join(str(source / part) for part in ("operator", "agent"))


async def until(
    condition: Callable, seconds: float = PATIENCE, why: Callable[[], str] = lambda: "not so in time"
) -> None:
    """Wait for something that others do; the time is for a slow machine.

    The longer it takes, the less often it looks: each look costs the API server and this machine what they need to get
    there.
    """
    begun = time.monotonic()
    while True:
        found = condition()
        if await found if asyncio.iscoroutine(found) else found:
            return
        waited = time.monotonic() - begun
        if waited > seconds:
            raise TimeoutError(why())
        least, most = LOOKS
        await asyncio.sleep(min(most, max(least, LATER * waited)))


async def holder(api: Api, namespace: str) -> str:
    """Return the holder of the lease of the operators of a namespace; empty: there is none."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/torchyard"
    return str(json.loads(await api.request("GET", path))["spec"].get("holderIdentity") or "")


async def address_for_pods(api: Api) -> str:
    """Where pods reach this machine: its address on the way to a node."""
    nodes = json.loads(await api.request("GET", "/api/v1/nodes"))["items"]
    inside = [
        each["address"]
        for node in nodes
        for each in node["status"].get("addresses", ())
        if each["type"] == "InternalIP"
    ]
    return own_address(inside[0] if inside else urlsplit(api.credentials.server).hostname or "127.0.0.1")


def own_address(towards: str) -> str:
    """The address of this machine as it is seen from there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((towards, 9))
        return str(probe.getsockname()[0])


def make_certificates(folder: Path, *addresses: str) -> Path:
    """`ca.crt`, and `tls.crt` and `tls.key` for these addresses."""
    folder.mkdir(parents=True, exist_ok=True)
    ca = folder / "ca"
    _openssl("req", "-x509", *_KEY, "-keyout", f"{ca}.key", "-out", f"{ca}.crt", "-subj", "/CN=torchyard tests")
    return sign_again(folder, *addresses)


_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")


def sign_again(folder: Path, *addresses: str) -> Path:
    """Replace `tls.crt` and `tls.key` by a new pair of the same authority."""
    names = ",".join(f"IP:{address}" for address in dict.fromkeys(("127.0.0.1", *addresses)))
    key, ca, leaf = _KEY, folder / "ca", folder / "tls"
    signing = ("-CA", f"{ca}.crt", "-CAkey", f"{ca}.key", "-addext", "basicConstraints=critical,CA:FALSE")
    names_of = ("-subj", "/CN=torchyard-intake", "-addext", f"subjectAltName={names}")
    _openssl("req", "-x509", *key, *signing, "-keyout", f"{leaf}.key", "-out", f"{leaf}.crt", *names_of)
    return folder


def sign_for(folder: Path, seconds: float) -> dt.datetime:
    """Replace `tls.crt` by one of the same key and authority that ends in so many seconds; return when it does."""
    issuer = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    signer: Any = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    leaf = x509.load_pem_x509_certificate((folder / "tls.crt").read_bytes())
    now = dt.datetime.now(dt.UTC)
    ends = (now + dt.timedelta(seconds=seconds)).replace(microsecond=0)
    made = x509.CertificateBuilder(extensions=list(leaf.extensions))
    made = made.subject_name(leaf.subject).issuer_name(issuer.subject).public_key(leaf.public_key())  # type: ignore[arg-type]
    made = made.serial_number(x509.random_serial_number()).not_valid_before(now - dt.timedelta(days=60))
    scratch = folder / "tls.crt.new"
    scratch.write_bytes(
        made.not_valid_after(ends).sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    )
    scratch.replace(folder / "tls.crt")
    return ends


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"openssl {' '.join(arguments)}: {done.stderr}"


@contextlib.contextmanager
def several() -> Iterator[Callable[..., Operator]]:
    """Makes operators, and ends them all."""
    made: list[Operator] = []

    def make(*args: object, **kwargs: object) -> Operator:
        made.append(Operator(*args, **kwargs))
        return made[-1]

    try:
        yield make
    finally:
        for each in made:
            each.stop()
    for each in made:
        if each.logs_json:
            assert_is_json(each.log)


def assert_is_json(log: Path) -> None:
    """Check that each line of an operator's log, whatever it went through, is one JSON object without a token."""
    *lines, rest = log.read_text().split("\n") if log.exists() else [""]
    known = [json.loads(line) for line in lines]
    assert all({"time", "level", "logger", "message"} <= each.keys() for each in known)
    assert not any("eyJ" in line for line in (*lines, rest))
    decisions = [each for each in known if each["logger"] == "torchyard.decisions"]
    assert all({"uid", "state", "reason", "actions"} <= each.keys() for each in decisions)
    assert all({"job", "sweep"} & each.keys() for each in decisions)
