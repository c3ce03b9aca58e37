"""Runs in a home of their own; waiting on what can be seen, never for a time."""

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.shared_templates import SHARED
from tests.support.waiting import DEADLINE

from torchyard.agents.registry import AgentRegistry
from torchyard.agents.server import application, unix_intake
from torchyard.api.resource import read_job
from torchyard.local import record
from torchyard.local.cluster import LocalCluster
from torchyard.local.controller import run_job
from torchyard.local.process import carrying
from torchyard.local.record import Running
from torchyard.local.run import RunFolder, read_run
from torchyard.local.runs import create_run
from torchyard.reconcile.actions import CommandAgent, CreatePod, DeletePod

CONTROLLER = """
import asyncio, sys
from pathlib import Path
from torchyard.local.run import RunFolder
from torchyard.local.controller import run_job
asyncio.run(run_job(RunFolder(Path(sys.argv[1]))))
"""


@pytest.fixture
def home(tmp_path, shared_cache, monkeypatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    (home / "cache").symlink_to(shared_cache)
    monkeypatch.setenv("TORCHYARD_HOME", str(home))
    return home


@pytest.fixture
def folder(home) -> Iterator[RunFolder]:
    """A run, none of whose processes may be left when the test is over."""
    folder = RunFolder(home / "runs" / "demo")
    yield folder
    left = [one for one in carrying("TORCHYARD_CHECKPOINT_DIR", str(folder.checkpoints)) if one.alive()]
    for process in left:
        process.kill(signal.SIGKILL)
    assert not left, "the test left processes behind"


@pytest.fixture
def until():
    async def wait(condition: Callable[[], Any], what: str = "") -> Any:
        deadline = time.monotonic() + DEADLINE
        while not (seen := condition()):
            assert time.monotonic() < deadline, f"not within {DEADLINE} s: {what or condition}"
            await asyncio.sleep(0.02)
        return seen

    return wait


class Bench:
    """A local cluster and a server of agents, and a test in the place of the reconciler."""

    def __init__(self, folder, until):
        self.folder = folder
        self.until = until
        self.registry = AgentRegistry(time.time, interval=1.0, on_news=lambda _uid: None)

    def create(self, **spec):
        spec = {"command": [sys.executable, "-c", "pass"], "gracePeriod": "10s"} | spec
        job = read_job({"metadata": {"name": self.folder.name}, "spec": spec})
        return create_run(self.folder, job, self.folder.home)

    @contextlib.asynccontextmanager
    async def controller(self):
        cluster = LocalCluster(self.folder, gone=self.registry.forget)
        cluster.read_tokens()
        async with unix_intake(application(self.registry, cluster.authenticate), self.folder.socket_file) as url:
            await cluster.open(url)
            self.cluster = cluster
            try:
                yield cluster
            finally:
                await cluster.close()

    @property
    def pods(self):
        return self.cluster.pods(self.job.metadata.uid)

    @property
    def job(self):
        return self.cluster.job(("default", self.folder.name))

    @property
    def agent(self):
        return self.registry.of([self.pods[0].uid]).get(self.pods[0].uid)

    async def start(self, index=0):
        name = f"demo-0-{index}"
        await self.cluster.create_pod(self.job, CreatePod(name=name, index=index, incarnation=0))
        pod = self.cluster._pods.by_name[name]
        await self.until(lambda: pod.running or pod.over)
        return pod

    async def ready(self):
        await self.until(lambda: self.agent and self.agent.state == "ready", what="the agent is ready")

    def run_round(self, round_=1):
        uid = self.pods[0].uid
        command = CommandAgent(
            pod_uid=uid, verb="run", round=round_, nodes=1, master_address="127.0.0.1", master_port=29999, procs=1
        )
        self.registry.command(command)

    async def delete(self, pod, grace=10.0):
        view = pod.view()
        await self.cluster.delete_pod(
            self.job, DeletePod(uid=view.uid, name=view.name, grace_seconds=grace, why="test")
        )
        await self.until(lambda: view.name not in self.cluster._pods.by_name)

    def marked(self, pod):
        """The processes of a pod that live."""
        return [process for process in carrying("TORCHYARD_POD_UID", pod.record.uid) if process.alive()]


@pytest.fixture
def bench(folder, until):
    return Bench(folder, until)


class Laptop:
    """A run, and the process group of a user in front of it."""

    def __init__(self, folder, until):
        self.folder = folder
        self.until = until
        self.changes = []
        self.events = []
        self.task = None

    def create(self, **spec):
        job = read_job({"metadata": {"name": self.folder.name}, "spec": spec})
        return create_run(self.folder, job, self.folder.home)

    def begin(self):
        self.stop, self.kill = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(run_job(self.folder, on_change=self._changed, stop=self.stop, kill=self.kill))

    def _changed(self, job, events):
        self.changes.append(job)
        self.events += events

    async def ended(self):
        async with asyncio.timeout(DEADLINE):
            return await self.task

    async def run(self, **spec):
        self.create(**spec)
        self.begin()
        return await self.ended()

    def controller_process(self):
        """Control the run from a process of its own."""
        return subprocess.Popen([sys.executable, "-c", CONTROLLER, str(self.folder.path)])

    @property
    def status(self):
        return read_run(self.folder).status

    async def reached(self, step):
        """The job has made `step` steps and has a checkpoint from before."""
        await self.until(
            lambda: (
                (self.task is None or not self.task.done())
                and self.status.progress.step >= step
                and self.status.checkpoint
            ),
            f"step {step}",
        )

    async def working(self):
        """A worker runs."""
        await self.until(lambda: [*self.folder.pods.glob("*/run/workers.json")], "a worker runs")

    def processes(self, index):
        """The newest pod of this index: its folder and its processes."""
        found = []
        for path in self.folder.pods.glob(f"*-{index}/pod.json"):
            pod = record.read(path, record.PodRecord)
            found.append((pod.incarnation, path.parent, record.read(path.with_name("process.json"), Running)))
        _, folder, running = max(found, key=lambda each: each[0])
        return folder, running

    @property
    def left(self):
        marked = carrying("TORCHYARD_CHECKPOINT_DIR", str(self.folder.checkpoints))
        return [process for process in marked if process.alive()]

    def weights(self):
        return (self.folder.checkpoints / "final" / "model.safetensors").read_bytes()

    async def close(self):
        if self.task is not None and not self.task.done():
            self.kill.set()
            with contextlib.suppress(Exception):
                await self.ended()


@pytest.fixture(scope="session")
def new_laptop():
    return lambda folder: Laptop(folder, None)


@pytest.fixture
def one_template(monkeypatch):
    """Have the pods of this test forked from a template that it shares with others: their start is not its subject."""
    for name, value in SHARED.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
async def laptop(folder, until, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    laptop = Laptop(folder, until)
    yield laptop
    await laptop.close()
