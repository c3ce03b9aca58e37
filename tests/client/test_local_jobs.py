"""Runs of this machine in Python, in a thread with a running event loop, as in a notebook."""

import asyncio
import json
import signal
import subprocess
import sys

import msgspec
import pytest
from tests.cli.conftest import eventually
from tests.support.waiting import DEADLINE

import torchyard as ty

pytestmark = pytest.mark.e2e

# Started as it is, without torchrun: PyTorch takes its time to be imported.
PROGRAM = """
import json, os
from pathlib import Path
pod = os.environ["TORCHYARD_POD_NAME"]
print("pod", pod)
if pod.endswith("-0"):
    folder = Path(os.environ["TORCHYARD_CHECKPOINT_DIR"])
    (folder / "result.json").write_text(json.dumps({"pod": pod}))
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\\n')
"""
WAITS = """
import pathlib, time
print("step 1", flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.05)
"""


def job_of(name: str, program: str, **spec: object) -> dict:
    return {"metadata": {"name": name}, "spec": {"command": [sys.executable, "-c", program], **spec}}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def test_a_run_is_read_in_every_way_from_inside_a_running_loop(home):
    job = ty.run(job_of("hello", PROGRAM, nodes=2))
    assert job.status.state == "Succeeded"
    assert sorted((line.rank, line.text) for line in job.logs(follow=True)) == [
        (0, "pod hello-0-0"),
        (1, "pod hello-0-1"),
    ]
    assert [line.rank for line in job.logs(rank=1)] == [1]
    with pytest.raises(ty.TorchYardError, match="tail -1 is not possible"):
        list(job.logs(tail=-1))
    with pytest.raises(ty.TorchYardError, match="5 is not a valid name of a run"):
        await ty.aio.get_job(5)
    assert job.metrics() == [{"step": 1, "loss": 2.0}]
    assert {"metrics.jsonl", "result.json"} <= {each.path for each in job.artifacts}
    assert json.loads(job.fetch("result.json", home / "got.json").read_text()) == {"pod": "hello-0-0"}
    assert "hello on this machine is Succeeded" in str(job.why())
    assert [status.state for status in job.watch()] == ["Succeeded"]
    again = await ty.aio.get_job("hello")
    assert again.uid == job.uid
    assert [each.name for each in ty.jobs()] == ["hello"]
    job.delete()
    assert ty.jobs() == []
    with pytest.raises(ty.NotFoundError, match="there is no run 'hello'"):
        _ = job.status


def test_a_failure_raises_with_the_last_lines_of_the_rank_that_failed():
    with pytest.raises(ty.JobFailedError, match=r"(?s)boom failed: .*rank 0, round .*ValueError: no data") as error:
        ty.run(job_of("boom", "raise ValueError('no data')"))
    assert error.value.status.attempts[-1].cause.rank == 0


def test_a_run_in_the_background_is_stopped_and_continues(home):
    patterns = {"patterns": [r"step (?P<step>\d+)"], "interval": "1s"}
    job = ty.run(job_of("bg", WAITS, metrics=patterns), wait=False)
    # What it runs with is recorded meanwhile.
    running = next(status for status in job.watch() if status.state == "Running" and status.environment)
    record = json.loads(job.fetch("environment.json").read_text())
    assert (record["digest"], record["packages"]["msgspec"]) == (running.environment, msgspec.__version__)
    with pytest.raises(TimeoutError):
        job.wait(timeout=0.1)
    assert job.stop().state == "Suspended"
    (home / "go").touch()
    job.resume()
    assert job.wait().state == "Succeeded"


async def test_a_cancelled_call_ends_once_its_run_is_saved_and_stopped(home):
    running = asyncio.create_task(ty.aio.run(job_of("bg", WAITS)))
    await asyncio.to_thread(eventually, (home / "home/runs/bg/status.json").exists)
    job = await ty.aio.get_job("bg")
    async for status in job.watch():
        if status.round:
            break
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await job.status()).state == "Suspended"


# A fork of the process that ends before it is not the one that saves and stops, and would wait in vain.
FORKS = """
import os, torchyard.client.controlled as controlled
waits, controlled.EXIT_SECONDS = controlled.EXIT_SECONDS, 1e6
child = os.fork()
if child == 0:
    raise SystemExit
assert os.waitpid(child, 0)[1] == 0
controlled.EXIT_SECONDS = waits
"""
PROGRAMS = {
    "the process ends": "job = ty.run(JOB, wait=False)\nnext(True for status in job.watch() if status.round)\n" + FORKS,
    "Ctrl-C": "try:\n    ty.run(JOB)\nfinally:\n    assert ty.get_job('bg').status.state == 'Suspended'\n",
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_a_run_is_stopped_and_can_go_on_when_its_program_ends(home, program):
    # What runs in the background of a shell, as these tests may, begins with Ctrl-C ignored.
    heard = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    source = f"{heard}import torchyard as ty\nJOB = {job_of('bg', WAITS)!r}\n{program}"
    running = subprocess.Popen([sys.executable, "-c", source], stderr=subprocess.PIPE, text=True)
    if "wait=False" not in program:
        eventually(lambda: (home / "home/runs/bg/job.yaml").exists() and ty.get_job("bg").status.round)
        running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=DEADLINE)
    assert ("KeyboardInterrupt" in said) == ("wait=False" not in program), said
    job = ty.get_job("bg")
    assert job.status.state == "Suspended"
    (home / "go").touch()
    job.resume()
    assert job.wait().state == "Succeeded"
