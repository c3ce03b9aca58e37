"""The conformance suite drives agents as black boxes: a small intake that speaks the protocol, and real processes."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import urlopen

import pytest

from torchyard_agent.build import build

DEADLINE = 60.0


class TcpServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        pass  # an agent that drops a poll is no error


class UnixServer(TcpServer):
    address_family = socket.AF_UNIX

    def server_bind(self):
        self.socket.bind(self.server_address)


def bound_to(path, handler):
    """A server on a socket whose path may be longer than the 108 bytes of an address."""
    path.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_PATH)
    try:
        return UnixServer(f"/proc/self/fd/{folder}/{path.name}", handler)
    finally:
        os.close(folder)


class Intake:
    """`POST /v1/sync` of docs/protocol.md for any number of pods, told apart by their bearer token."""

    def __init__(self, at=0, interval=0.5):
        """`at`: a port of loopback, 0 for any free one, or the path of a socket."""
        self.interval = interval
        self.changed = threading.Condition()
        self.commands = {}
        self.requests = {}
        self.refuse = {}
        self.closing = False
        intake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, answer = intake.answer(self.path, self.headers["Authorization"], body)
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        if isinstance(at, Path):
            self.server = bound_to(at, Handler)
            self.at, self.url = at, f"unix:{at}"
        else:
            self.server = TcpServer(("127.0.0.1", at), Handler)
            self.at = self.server.server_address[1]
            self.url = f"http://127.0.0.1:{self.at}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def answer(self, path, authorization, body):
        assert path == "/v1/sync"
        assert len(body) <= 16 * 1024
        pod, request = authorization.removeprefix("Bearer "), json.loads(body)
        with self.changed:
            self.requests.setdefault(pod, []).append(request)
            self.changed.notify_all()
            if pod in self.refuse:
                return self.refuse[pod]
            self.commands.setdefault(pod, (1, {"verb": "wait"}))
            self.changed.wait_for(
                lambda: self.commands[pod][0] != request["revision"] or self.closing,
                min(request["wait"], self.interval),
            )
            revision, command = self.commands[pod]
            if self.closing:
                raise ConnectionAbortedError
        return 200, {"revision": revision, "interval": self.interval, "command": command}

    def tell(self, pod, verb, **fields):
        with self.changed:
            revision = self.commands.get(pod, (1, None))[0] + 1
            self.commands[pod] = (revision, {"verb": verb, **fields})
            self.changed.notify_all()

    def state(self, pod):
        requests = self.requests.get(pod, [])
        return max(requests, key=lambda request: (request["time"], request["sequence"])) if requests else {}

    def wait_for(self, pod, condition, seconds=DEADLINE):
        """The first newest state that meets `condition`."""
        with self.changed:
            met = self.changed.wait_for(lambda: self.requests.get(pod) and condition(self.state(pod)), seconds)
            state = self.state(pod)
        assert met, f"{pod} never got there; last state: {json.dumps(state, indent=1)}"
        return state

    def close(self):
        with self.changed:
            self.closing = True
            self.changed.notify_all()
        self.server.shutdown()
        self.server.server_close()


class Pod:
    """One agent process and what it was given."""

    def __init__(self, name, intake, folder, *, agent, command, python, env):
        self.name, self.intake = name, intake
        self.run_dir = folder / name
        self.run_dir.mkdir(parents=True)
        token = self.run_dir / "token"
        token.write_text(name)
        self.log_dir = self.run_dir / "logs"
        self.termination_log = self.run_dir / "termination-log"
        base = {key: value for key, value in os.environ.items() if not key.startswith(("TORCHYARD_", "PET_"))}
        self.env = {
            **base,
            "OMP_NUM_THREADS": "1",
            "TORCHYARD_JOB": "job",
            "TORCHYARD_NAMESPACE": "default",
            "TORCHYARD_JOB_UID": "uid",
            "TORCHYARD_POD_NAME": name,
            "TORCHYARD_POD_INDEX": "0",
            "TORCHYARD_OPERATOR_URL": intake.url,
            "TORCHYARD_TOKEN_FILE": str(token),
            "TORCHYARD_RUN_DIR": str(self.run_dir),
            "TORCHYARD_TERMINATION_LOG": str(self.termination_log),
            "TORCHYARD_GRACE_SECONDS": "10",
            **env,
        }
        self.output = (self.run_dir / "output").open("wb")
        self.process = subprocess.Popen(
            [python, str(agent), "--", *command],
            env=self.env,
            cwd=folder,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.round = 0
        self.logged = {}

    def ready(self):
        return self.wait_for(lambda state: state["state"] == "ready")

    def run(
        self, round_number=None, *, nodes=1, rank=0, address="127.0.0.1", port=None, procs=1, program=None, env=None
    ):
        self.round = round_number or max(self.round, self.intake.state(self.name).get("round", 0)) + 1
        self.logged = {path.name: path.stat().st_size for path in self.log_dir.glob("rank-*.log")}
        self.intake.tell(
            self.name,
            "run",
            round=self.round,
            nodes=nodes,
            nodeRank=rank,
            masterAddress=address,
            masterPort=port or self.intake.state(self.name).get("masterPort") or 29512,
            procs=procs,
            env={**(env or {}), **({"PROGRAM": str(program)} if program else {})},
        )

    def tell(self, verb, **fields):
        self.intake.tell(self.name, verb, **fields)

    def wait_for(self, condition, seconds=DEADLINE):
        return self.intake.wait_for(self.name, condition, seconds)

    def ended(self, round_number=None, seconds=DEADLINE):
        """`exit` of the round, once it is reported."""
        number = round_number or self.round
        return self.wait_for(lambda state: state.get("exit", {}).get("round") == number, seconds)["exit"]

    def stepped(self, step=1):
        return self.wait_for(lambda state: any(report["step"] >= step for report in state["reports"]))

    def workers(self, count):
        """Process ids of the workers by rank, once all of them run."""
        return until(lambda: len(self.status()["workers"]) == count and self.status()["workers"])

    def port(self):
        return until(lambda: json.loads((self.run_dir / "agent.json").read_text()))["port"]

    def get(self, path):
        with urlopen(f"http://127.0.0.1:{self.port()}{path}", timeout=5) as response:
            return response.read().decode()

    def status(self):
        return json.loads(self.get("/status"))

    def log(self, rank=0):
        """Output of a rank since the last `run`."""
        path = self.log_dir / f"rank-{rank}.log"
        return path.read_bytes()[self.logged.get(path.name, 0) :].decode() if path.exists() else ""

    def exited(self, seconds=DEADLINE):
        return self.process.wait(seconds)

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.output.close()


def until(look, seconds=DEADLINE):
    """What `look` returns, once that is true; errors on the way count as not yet."""
    deadline = time.monotonic() + seconds
    error = None
    while time.monotonic() < deadline:
        try:
            found = look()
        except (OSError, ValueError, KeyError) as problem:
            error = problem
        else:
            if found:
                return found
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s: {error or 'never true'}")


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(name="until")
def _until():
    return until


@pytest.fixture(name="alive")
def _alive():
    return alive


@pytest.fixture(scope="session")
def agent_pyz(tmp_path_factory):
    target = tmp_path_factory.mktemp("agent") / "torchyard-agent.pyz"
    build(target)
    return target


@pytest.fixture
def new_intake():
    made = []

    def make(at=0):
        made.append(Intake(at))
        return made[-1]

    yield make
    for intake in made:
        if not intake.closing:
            intake.close()


@pytest.fixture(params=["tcp", "unix"])
def listen(request, tmp_path, new_intake):
    """Open an intake, at the same place each time; a socket's path is longer than an address may be."""
    place = 0
    if request.param == "unix":
        folder = tmp_path / ("long" * 30)
        folder.mkdir()
        place = folder / "intake.sock"

    def again():
        nonlocal place
        intake = new_intake(place)
        place = intake.at
        return intake

    return again


@pytest.fixture
def intake(new_intake):
    return new_intake()


@pytest.fixture
def pod(tmp_path, intake, agent_pyz):
    """Start an agent: `pod(*command, name=..., python=..., **env)`."""
    made = []

    def start(*command, name="pod-0", python=sys.executable, intake=intake, **env):
        made.append(
            Pod(
                name, intake, tmp_path, agent=agent_pyz, command=[str(word) for word in command], python=python, env=env
            )
        )
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.fixture(scope="session")
def warm_nodes(tmp_path_factory, agent_pyz):
    """Two warm agents kept for the whole suite; each round runs the program that its `env` names."""
    folder = tmp_path_factory.mktemp("warm")
    stage = folder / "stage.py"
    stage.write_text("import os\nexec(compile(open(os.environ['PROGRAM']).read(), os.environ['PROGRAM'], 'exec'))\n")
    intake = Intake()
    nodes = []
    for name, address in (("node-0", "127.0.0.1"), ("node-1", "127.0.0.2")):
        env = {"TORCHYARD_POD_ADDRESS": address}
        nodes.append(
            Pod(name, intake, folder, agent=agent_pyz, command=["torchrun", str(stage)], python=sys.executable, env=env)
        )
    yield nodes
    for node in nodes:
        node.close()
    intake.close()


@pytest.fixture
def nodes(warm_nodes):
    """Two warm pods, ready, with nothing running."""
    for node in warm_nodes:
        node.ready()
    yield warm_nodes
    for node in warm_nodes:
        node.tell("stop", round=max(node.round, 1))
        node.ready()


@pytest.fixture
def node(nodes):
    """A warm pod, ready, with nothing running."""
    return nodes[0]


@pytest.fixture
def script(tmp_path):
    """Write a Python program; its path."""

    def write(text, name="train.py"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write
