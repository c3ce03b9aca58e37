"""`run_job`: one TrainingJob through all of the house, with real agents, launchers and workers, and real kills."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time

import msgspec
import pytest

from torchyard import laptop as laptop_module
from torchyard.api.codec import read_job
from torchyard.cluster.local import record
from torchyard.cluster.local.folder import RunFolder
from torchyard.cluster.local.process import carrying
from torchyard.cluster.local.record import Running
from torchyard.cluster.local.run import events, read_run
from torchyard.cluster.local.runs import RunBusyError, create_run, is_controlled, suspend_run
from torchyard.laptop import remove_run, run_job

pytestmark = pytest.mark.e2e

# Long enough to be hit in the middle, with a checkpoint every second or so.
CVRP = {
    "trainer": {"name": "cvrp", "params": {"preset": "tiny", "steps": 48, "seed": 3}},
    "device": "cpu",
    "nodes": 2,
    "parallelism": {"globalBatchSize": 16},
    "checkpoint": {"interval": {"steps": 6}},
    "restart": {"backoff": {"initial": "1s"}},
    "metrics": {"interval": "1s"},
    "gracePeriod": "20s",
}
SECONDS = 150.0


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

    async def ended(self, seconds=SECONDS):
        async with asyncio.timeout(seconds):
            return await self.task

    async def run(self, **spec):
        self.create(**spec)
        self.begin()
        return await self.ended()

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
            SECONDS,
            f"step {step}",
        )

    async def working(self):
        """A worker runs."""
        await self.until(lambda: [*self.folder.pods.glob("*/run/workers.json")], SECONDS, "a worker runs")

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
                await self.ended(30)


@pytest.fixture(autouse=True)
def one_thread_a_worker(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
async def laptop(folder, until):
    laptop = Laptop(folder, until)
    yield laptop
    await laptop.close()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory, shared_cache):
    """A whole run that nobody disturbs: its last status, and the weights that every other run must reach."""
    home = tmp_path_factory.mktemp("undisturbed")
    (home / "cache").symlink_to(shared_cache)
    laptop = Laptop(RunFolder(home / "runs" / "demo"), None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        outcome = []
        thread = threading.Thread(target=lambda: outcome.append(asyncio.run(laptop.run(**CVRP))))
        thread.start()
        thread.join()
    (job,) = outcome
    assert not laptop.left
    return job, laptop


def test_a_job_trains_on_two_nodes_to_its_end(undisturbed):
    job, laptop = undisturbed
    status = job.status
    assert status.state == "Succeeded", status.message
    assert (status.progress.step, status.progress.total_steps) == (48, 48)
    assert status.restarts.total == 0
    assert status.round == 1
    assert status.checkpoint.step == 48
    assert status.metrics["cost"] < status.metrics["costUntrained"]
    assert read_run(laptop.folder) == job, "what is returned is what is on disk"
    states = list(dict.fromkeys(seen.status.state for seen in laptop.changes))
    assert "Running" in states
    assert states[-1] == "Succeeded"
    assert [event.reason for event in laptop.events] == [event.reason for event in events(laptop.folder)]
    assert [event.reason for event in laptop.events] == ["RoundOpened", "Training", "Completed"]
    assert is_controlled(laptop.folder) is None


@pytest.mark.parametrize("victim", ["worker", "agent", "pod"])
async def test_a_kill_in_the_middle_changes_no_bit_of_the_weights(laptop, undisturbed, victim):
    laptop.create(**CVRP)
    laptop.begin()
    await laptop.reached(14)
    folder, running = laptop.processes(1)
    if victim == "worker":
        (pid,) = json.loads((folder / "run" / "workers.json").read_bytes())["pids"].values()
        os.kill(pid, signal.SIGKILL)
    elif victim == "agent":
        running.agent.kill(signal.SIGKILL)
    else:
        uid = record.read(folder / "pod.json", record.PodRecord).uid
        for process in carrying("TORCHYARD_POD_UID", uid):
            process.kill(signal.SIGKILL)
    job = await laptop.ended()
    assert job.status.state == "Succeeded", job.status.message
    assert laptop.weights() == undisturbed[1].weights()
    assert job.status.round == 2
    assert job.status.restarts.total == 1
    attempt = job.status.attempts[0]
    if victim == "worker":
        assert (attempt.cause.rank, attempt.cause.exit_code) == (1, 137)
    assert attempt.cause.pod
    assert not laptop.left


CONTROLLER = """
import asyncio, sys
from pathlib import Path
from torchyard.cluster.local.folder import RunFolder
from torchyard.laptop import run_job
asyncio.run(run_job(RunFolder(Path(sys.argv[1]))))
"""


def controller_process(folder):
    return subprocess.Popen([sys.executable, "-c", CONTROLLER, str(folder.path)])


async def train_until_the_controller_dies(laptop):
    laptop.create(**CVRP)
    controller = controller_process(laptop.folder)
    try:
        await laptop.reached(10)
    finally:
        controller.kill()
        controller.wait()


async def test_the_death_of_the_controller_disturbs_nothing(laptop, undisturbed):
    await train_until_the_controller_dies(laptop)
    members = {process.pid for process in laptop.left}
    assert members, "the gang trains on"
    assert is_controlled(laptop.folder) is None
    laptop.begin()
    job = await laptop.ended()
    assert job.status.state == "Succeeded", job.status.message
    assert job.status.round == 1, "adopted, not started anew"
    assert job.status.restarts.total == 0
    assert laptop.weights() == undisturbed[1].weights()
    assert not laptop.left


async def test_a_gang_that_calls_elsewhere_than_its_controller_listens_is_ended_first(laptop, undisturbed):
    await train_until_the_controller_dies(laptop)
    before = {process.pid for process in laptop.left}
    for path in laptop.folder.pods.glob("*/pod.json"):
        pod = record.read(path, record.PodRecord)
        record.write(path, msgspec.structs.replace(pod, url="http://127.0.0.1:1"))
    laptop.begin()
    await laptop.until(lambda: is_controlled(laptop.folder) and not before & {each.pid for each in laptop.left})
    job = await laptop.ended()
    assert job.status.state == "Succeeded", job.status.message
    assert job.status.round == 2
    assert laptop.weights() == undisturbed[1].weights()


async def test_stop_saves_and_run_again_goes_on_from_there(laptop, undisturbed):
    made = laptop.create(**CVRP)
    laptop.begin()
    await laptop.reached(10)
    laptop.stop.set()
    job = await laptop.ended()
    assert job.status.state == "Suspended", job.status.message
    assert job.spec.suspend
    assert job.status.checkpoint.step >= 10
    assert not laptop.left
    again = laptop.create(**CVRP)
    assert again.metadata.uid == made.metadata.uid
    laptop.begin()
    job = await laptop.ended()
    assert job.status.state == "Succeeded", job.status.message
    assert job.status.restarts.counted == 0
    assert laptop.weights() == undisturbed[1].weights()


STEPS = """
import sys, time, torch
parameter = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([parameter], lr=0.1)
for step in range(1, 10):
    parameter.grad = torch.ones(1)
    optimizer.step()
    if step == 7:
        print("about to do it", flush=True)
        {at_seven}
"""
QUICK = {"nodes": 1, "device": "cpu", "restart": {"backoff": {"initial": "1s", "max": "1s"}}, "gracePeriod": "10s"}


async def test_a_script_that_always_raises_ends_failed_with_the_evidence(laptop):
    job = await laptop.run(script=STEPS.format(at_seven="raise RuntimeError('seven is too much')"), **QUICK)
    status = job.status
    assert status.state == "Failed"
    assert len(status.attempts) >= 2, "it was tried again"
    cause = status.attempts[-1].cause
    assert (cause.rank, cause.exit_code) == (0, 1)
    assert "RuntimeError" in cause.exception
    assert "seven is too much" in cause.exception
    assert any("about to do it" in line for line in cause.lines)
    assert status.message
    assert not laptop.left


async def test_exit_64_fails_at_once(laptop):
    job = await laptop.run(script=STEPS.format(at_seven="sys.exit(64)"), **QUICK)
    assert job.status.state == "Failed"
    assert len(job.status.attempts) == 1
    assert job.status.attempts[0].cause.exit_code == 64


@pytest.mark.parametrize("command", [["torchrun", "nowhere.py"], ["no-such-program-anywhere"]])
async def test_what_cannot_be_started_is_named(laptop, command):
    job = await laptop.run(command=command, **QUICK)
    assert job.status.state == "Failed"
    assert len(job.status.attempts) == 1
    assert command[-1] in job.status.message
    assert job.status.attempts[0].cause.exit_code in {126, 127}


async def test_a_missing_working_folder_ends_the_job_with_a_sentence(laptop):
    job = await laptop.run(command=["true"], workingDir="nowhere", **QUICK)
    assert job.status.state == "Failed"
    assert "spec.workingDir" in job.status.message


async def test_a_slow_but_healthy_step_restarts_nothing(laptop):
    job = await laptop.run(script=STEPS.format(at_seven="time.sleep(30)"), **QUICK)
    assert job.status.state == "Succeeded", job.status.message
    assert job.status.restarts.total == 0
    assert job.status.progress.step == 9


SLEEP = {"command": [sys.executable, "-c", "import time; time.sleep(600)"], **QUICK, "gracePeriod": "1s"}


async def test_a_second_controller_is_refused_and_a_hard_stop_leaves_nothing(laptop):
    laptop.create(**SLEEP)
    laptop.begin()
    await laptop.working()
    with pytest.raises(RunBusyError, match=str(os.getpid())):
        await run_job(laptop.folder)
    laptop.kill.set()
    job = await laptop.ended()
    assert job.status.state == "Suspended"
    assert not laptop.left


async def test_another_terminal_can_stop_a_run(laptop):
    laptop.create(**SLEEP)
    laptop.begin()
    await laptop.working()
    suspend_run(laptop.folder, suspend=True)
    job = await laptop.ended(20)
    assert job.status.state == "Suspended"
    assert not laptop.left


async def test_another_terminal_can_remove_a_run(laptop):
    laptop.create(**SLEEP)
    laptop.begin()
    await laptop.working()
    await asyncio.to_thread(remove_run, laptop.folder)
    await laptop.ended(20)
    assert not laptop.left
    assert not laptop.folder.path.exists()


async def test_a_run_that_nobody_controls_is_removed_with_all_that_still_runs(laptop):
    laptop.create(**SLEEP)
    controller = controller_process(laptop.folder)
    await laptop.working()
    controller.kill()
    controller.wait()
    assert laptop.left
    await asyncio.to_thread(remove_run, laptop.folder)
    assert not laptop.left
    assert not laptop.folder.path.exists()


async def test_a_job_file_that_is_away_for_a_moment_deletes_nothing(laptop, monkeypatch):
    looks = []
    read = laptop_module.read_run
    monkeypatch.setattr(laptop_module, "read_run", lambda folder: looks.append(read(folder)) or looks[-1])
    laptop.create(**SLEEP)
    laptop.begin()
    await laptop.working()
    aside = laptop.folder.job_file.rename(laptop.folder.path / "job.yaml~")
    await laptop.until(lambda: None in looks, what="the controller has looked")
    aside.rename(laptop.folder.job_file)
    suspend_run(laptop.folder, suspend=True)
    job = await laptop.ended(20)
    assert job.status.state == "Suspended", "it follows the file again"
    assert laptop.folder.path.is_dir()


async def test_an_edit_that_is_no_job_is_said_and_not_used(laptop):
    laptop.create(**SLEEP)
    laptop.begin()
    await laptop.working()
    good = laptop.folder.job_file.read_bytes()
    laptop.folder.job_file.write_bytes(b"spec: [")
    await laptop.until(lambda: "InvalidSpec" in {event.reason for event in laptop.events})
    laptop.folder.job_file.write_bytes(good)
    assert not laptop.task.done()


async def test_gpus_that_this_machine_lacks_are_said_on_the_status(laptop):
    laptop.create(**SLEEP | {"gpusPerNode": 64})
    laptop.begin()
    await laptop.until(lambda: "need 64" in laptop.status.message, what=str(time.time()))
    assert laptop.status.state == "Pending"
    assert laptop.status.reason == "InsufficientGPU"
    laptop.stop.set()
    job = await laptop.ended(20)
    assert job.status.state == "Suspended"
