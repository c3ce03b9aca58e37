"""One import of torch for several pods: whose child is whose, and what goes wrong without harm."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest
from tests.support.waiting import alive, until

from torchyard.local import template
from torchyard.local.process import carrying
from torchyard.local.run import is_locked, take_lock
from torchyard.local.template import Imports, PodProcesses
from torchyard.local.zipapp import agent_zipapp

pytestmark = pytest.mark.e2e

UID = "12345678-1234-1234-1234-123456789012"
KEEPER = "import os, sys; os.waitpid(int(sys.argv[-1]), 0)"
# In place of an agent: it sends the environment of its arguments to its zygote, and writes the answer to a file.
AGENT = """
import json, os, signal, sys
from pathlib import Path
sys.path[0:0] = [sys.argv[1]]
from torchyard_agent.settings import read
from torchyard_agent.workers.environment import worker_environment, write_hooks, zygote_environment
from torchyard_agent.workers.zygote_client import Zygote
settings = read(["--", "torchrun"], os.environ)
write_hooks(settings)
env = zygote_environment(worker_environment(os.environ, settings, "", Path("none"), 0), 1)
env.update(json.loads(sys.argv[2]))
zygote = Zygote.inherited(settings.zygote, sys.executable, env, ())
while zygote.state == "starting":
    zygote.receive()
found = {"state": zygote.state, "reason": zygote.reason, "agent": os.getpid(), "zygote": zygote.pid}
path = Path(os.environ["TORCHYARD_RUN_DIR"], "found.json")
path.with_suffix(".new").write_text(json.dumps(found))
path.with_suffix(".new").rename(path)
signal.pause()
"""
JOB = """
import os, pathlib, time, torch
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
folder = pathlib.Path(os.environ["TORCHYARD_CHECKPOINT_DIR"])
while True:
    weight.grad = torch.ones(1)
    optimizer.step()
    if (folder / "end").exists():
        break
    time.sleep(0.05)
"""


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def name(pid):
    return Path(f"/proc/{pid}/comm").read_text().strip()


class Pods:
    """Starts pods of two processes from one template."""

    def __init__(self, folder, cache):
        self.folder, self.agent = folder, agent_zipapp(cache)
        self.template = None
        self.number = 0
        self.read, self.held = os.pipe()  # in the place of a GPU's lock
        names = ("TORCHYARD_", "PYTEST_")
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(names)}
        names = ("JOB", "NAMESPACE", "JOB_UID", "POD_NAME", "TOKEN_FILE")
        self.env |= {f"TORCHYARD_{name}": "x" for name in names} | {
            "TORCHYARD_POD_INDEX": "0",
            "TORCHYARD_POD_UID": UID,
            "TORCHYARD_PROCS": "1",
            "TORCHYARD_OPERATOR_URL": "unix:/none",
            "OMP_NUM_THREADS": "1",
        }

    def begin(self):
        env = self.env | {"TORCHYARD_RUN_DIR": str(self.folder)}
        folder = self.folder / f"{'deep' * 30}-{time.monotonic_ns()}"  # a socket's own address has only 108 bytes
        folder.mkdir(mode=0o700)
        self.template = template.begun(Imports(self.agent, ["torchrun"], env), folder)
        assert asyncio.run(self.template.imported())

    def pod(self, differing=None, **more):
        """Return what a pod is started with: its folder and its first processes."""
        self.number += 1
        run = self.folder / f"pod-{self.number}"
        run.mkdir()
        env = self.env | {"TORCHYARD_RUN_DIR": str(run), **more}
        words = [sys.executable, "-c", AGENT, str(self.agent), json.dumps(differing or {})]
        return run, PodProcesses([sys.executable, "-c", KEEPER], words, env, str(self.folder))

    def start(self, run, pod):
        lock = take_lock(run / "lock")
        try:
            with (run / "log").open("wb") as log:
                return self.template.start(pod, [lock, log.fileno(), self.read])
        finally:
            os.close(lock)

    def close(self):
        os.close(self.held)
        os.close(self.read)
        if self.template is not None:
            self.template.close()


@pytest.fixture(scope="module")
def shared_pods(tmp_path_factory):
    pods = Pods(tmp_path_factory.mktemp("pods"), tmp_path_factory.mktemp("cache"))
    yield pods
    pods.close()


@pytest.fixture
def pods(shared_pods):
    """Pods of a template that lives; some tests end it."""
    if shared_pods.template is None or not shared_pods.template.alive:
        shared_pods.begin()
    return shared_pods


def found(run):
    until((run / "found.json").exists)
    return json.loads((run / "found.json").read_bytes())


def held_files(pid):
    links = [path.readlink() for path in Path(f"/proc/{pid}/fd").iterdir()]
    return {str(link) for link in links}


def test_the_processes_of_a_pod_descend_from_each_other_and_end_with_its_keeper(pods):
    run, pod = pods.pod()
    assert pods.start(run, pod)
    said = found(run)
    assert (said["state"], said["reason"]) == ("ready", "")
    agent, zygote = said["agent"], said["zygote"]
    keeper = parent(agent)
    assert (parent(zygote), name(zygote), name(parent(keeper))) == (agent, "ty-warm", "ty-template")
    assert os.getsid(zygote) == agent == os.getsid(agent)
    marked = {process.pid for process in carrying("TORCHYARD_POD_UID", UID)}
    assert {keeper, agent, zygote} <= marked
    assert parent(keeper) not in marked
    lock = str(run / "lock")
    assert [lock in held_files(pid) for pid in (keeper, agent, zygote)] == [True, False, False]
    assert [any("pipe:" in each for each in held_files(pid)) for pid in (keeper, agent)] == [True, True]
    assert not held_files(zygote) & held_files(agent) - {"/dev/null", str(run / "log")}
    os.kill(keeper, signal.SIGKILL)
    until(lambda: not alive(agent) and not alive(zygote))
    assert not is_locked(run / "lock")


@pytest.mark.parametrize(
    ("differing", "named"),
    [
        ({"LD_LIBRARY_PATH": "/x"}, "LD_LIBRARY_PATH"),
        ({"PYTHONPATH": "/x"}, "PYTHONPATH"),
        ({"TORCHYARD_X": "1"}, None),
    ],
)
def test_a_zygote_that_was_made_for_another_environment_ends(pods, differing, named):
    run, pod = pods.pod(differing)
    assert pods.start(run, pod)
    said = found(run)
    expected = ("ready", "") if named is None else ("failed", f"was made for other values of {named}")
    assert (said["state"], said["reason"]) == expected
    if named is not None:
        until(lambda: not alive(said["zygote"]))
    with contextlib.suppress(ProcessLookupError):
        os.kill(said["agent"], signal.SIGKILL)
    until(lambda: not is_locked(run / "lock"))


def test_what_no_process_can_be_given_is_left_to_an_ordinary_start(pods):
    run, pod = pods.pod(A="a\0b")
    assert not pods.start(run, pod)
    run, pod = pods.pod(A="a" * template._MOST_BYTES)
    assert not pods.start(run, pod)
    assert pods.template.alive


def test_a_caller_that_gave_up_starts_nothing(pods):
    run, pod = pods.pod()
    with (run / "lock").open("wb") as lock, socket.socket(socket.AF_UNIX) as connection:
        with template._address(pods.template._folder) as address:
            connection.connect(address)
        request = {each: getattr(pod, each) for each in pod.__struct_fields__}
        socket.send_fds(connection, [template._framed(request)], [lock.fileno(), lock.fileno()])
        assert b"accepted" in connection.recv(100)
    later, pod = pods.pod()
    assert pods.start(later, pod)  # one after the other: the first one was dropped before
    said = found(later)
    assert not list(run.glob("found*"))
    os.kill(said["agent"], signal.SIGKILL)
    until(lambda: not is_locked(later / "lock"))


def test_a_template_whose_imports_changed_ends_and_leaves_nothing(pods):
    run, pod = pods.pod()
    imported = pods.template._folder / "hooks" / "sitecustomize.py"
    os.utime(imported, (1, 1))
    assert not pods.start(run, pod)
    assert not pods.template.alive
    assert not pods.template._folder.exists()


def test_a_template_that_is_killed_or_stopped_starts_no_pod_and_those_it_has_started_go_on(pods):
    run, pod = pods.pod()
    assert pods.start(run, pod)
    said = found(run)
    os.kill(pods.template.process.pid, signal.SIGSTOP)
    until(pods.template.process.stopped)
    second, pod = pods.pod()
    assert not pods.start(second, pod)
    assert not pods.template.alive, "what is asked may not start the pod later, when it is let go on"
    assert not is_locked(second / "lock")
    assert alive(said["agent"])
    assert alive(said["zygote"])
    os.kill(said["agent"], signal.SIGKILL)
    until(lambda: not is_locked(run / "lock"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_one_that_is_killed_or_stopped_while_it_imports_is_not_waited_for(pods, number):
    begun = template.begun(Imports(pods.agent, ["torchrun"], pods.env))
    os.kill(begun.process.pid, number)
    assert not asyncio.run(begun.imported())
    begun.close()
    assert not begun._folder.exists()


def test_one_that_is_killed_with_a_request_in_its_hands_starts_nothing(pods):
    begun = pods.template
    run, pod = pods.pod()
    request = template._framed({each: getattr(pod, each) for each in pod.__struct_fields__})
    with (run / "lock").open("wb") as lock, socket.socket(socket.AF_UNIX) as connection:
        with template._address(begun._folder) as address:
            connection.connect(address)
        socket.send_fds(connection, [request], [lock.fileno(), lock.fileno()])
        assert b"accepted" in connection.recv(100)
        begun.process.kill(signal.SIGKILL)
        until(lambda: not begun.alive)
        assert connection.recv(100) == b""
    assert not pods.start(run, pod)
    assert not begun._folder.exists()


async def test_a_job_continues_without_its_zygote_its_controller_and_its_template(laptop, until):
    laptop.create(script=JOB, nodes=2, restart={"backoff": {"initial": "1s"}}, gracePeriod="5s")
    controller = laptop.controller_process()
    try:
        await until(lambda: len([*laptop.folder.pods.glob("*/run/workers.json")]) == 2)
        pods = [laptop.processes(index)[1] for index in (0, 1)]
        (template,) = {parent(pod.keeper.pid) for pod in pods}
        folder = folder_of(template)
        assert name(template) == "ty-template"
        first, second = ({child for child in children(pod.agent.pid) if name(child) == "ty-warm"} for pod in pods)
        os.kill(second.pop(), signal.SIGKILL)
        await until(lambda: laptop.status.round == 2)
        assert {child for child in children(pods[0].agent.pid) if name(child) == "ty-warm"} == first
        os.kill(template, signal.SIGSTOP)
        pods[0].agent.kill(signal.SIGKILL)
        await until(lambda: laptop.status.round == 3)
        pods = [laptop.processes(index)[1] for index in (0, 1)]
        assert [name(parent(pod.keeper.pid)) == "ty-template" for pod in pods] == [False, False], "it was killed"
    finally:
        controller.kill()
        controller.wait()
    assert not alive(template)
    assert not os.path.exists(folder)  # noqa: ASYNC240, PTH110
    assert all(pod.agent.alive() for pod in pods)
    (laptop.folder.checkpoints / "end").touch()
    laptop.begin()
    job = await laptop.ended()
    assert job.status.state == "Succeeded", job.status.message


def folder_of(template):
    variables = Path(f"/proc/{template}/environ").read_text().split("\0")
    return dict(each.split("=", 1) for each in variables if each)["TORCHYARD_RUN_DIR"]


def children(pid):
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
