"""A full disk stops no training, ends no controller and loses no event; what it refuses is said and tried again."""

import asyncio
import contextlib
import errno
import json
import logging
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.waiting import DEADLINE

from torchyard.api.files import write_whole
from torchyard.api.resource import read_job
from torchyard.client.errors import FAILED, TorchYardError
from torchyard.client.run_log import log_to_run_folder
from torchyard.client.start import RequestedJob, start
from torchyard.local import controller, events, record, run
from torchyard.local.cluster import LocalCluster
from torchyard.local.controller import run_job
from torchyard.local.run import is_controlled, write_atomic
from torchyard.local.runs import create_run, remove_run
from torchyard.local.zipapp import agent_zipapp
from torchyard.reconcile.actions import EmitEvent

SLEEP = {
    "command": [sys.executable, "-c", "import time; time.sleep(600)"],
    "device": "cpu",
    "gracePeriod": "1s",
}


def made(folder, **spec):
    return create_run(folder, read_job({"metadata": {"name": folder.name}, "spec": SLEEP | spec}), folder.home)


@pytest.fixture
def full_disk(monkeypatch):
    """Nothing can be written into run folders until it is switched off."""
    refused = []

    def refuse(path, *_):
        refused.append(path.name)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    @contextlib.contextmanager
    def full():
        with monkeypatch.context() as patch:
            patch.setattr(run, "write_atomic", refuse)
            patch.setattr(record, "write_atomic", refuse)
            patch.setattr(events, "append_events", lambda folder, _: refuse(folder.events_file))
            yield refused

    return full


@pytest.fixture
def room():
    """Limit files to so many bytes: as on a full disk, the kernel takes the first ones and refuses the others."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    @contextlib.contextmanager
    def most(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    yield most
    signal.signal(signal.SIGXFSZ, before)


def test_an_agent_that_cannot_be_written_is_one_sentence_and_leaves_nothing(tmp_path, room):
    with room(4096), pytest.raises(OSError, match=r"the agent cannot be built \(.*pyz: File too large\)") as raised:
        agent_zipapp(tmp_path)
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_an_event_is_written_whole_or_not_at_all(folder, room):
    made(folder)
    kept = run.Event("2026-11-21T06:20:00Z", "Normal", "RoundOpened", "round 1")
    run.append_events(folder, [kept])
    with room(folder.events_file.stat().st_size + 20), pytest.raises(OSError, match="too large"):
        run.append_events(folder, [run.Event("2026-11-21T06:20:01Z", "Normal", "Training", "step " * 100)])
    run.append_events(folder, [kept])
    assert run.events(folder) == [kept, kept]
    assert folder.events_file.read_bytes().count(b"\n") == 2


def test_a_file_that_cannot_be_replaced_is_named_and_left_as_it_was(folder, room):
    job = made(folder)
    before = folder.job_file.read_bytes()
    with room(20), pytest.raises(OSError, match=r"job\.yaml"):
        run.write_job(folder, job)
    assert folder.job_file.read_bytes() == before
    assert not [*folder.path.glob(".job.yaml.*")]


def test_a_new_file_that_does_not_fit_is_named_and_not_left_behind(tmp_path, room):
    with room(20), pytest.raises(OSError, match=r"job\.yaml"):
        write_whole(tmp_path / "job.yaml", "x" * 100)
    assert list(tmp_path.iterdir()) == []


def test_the_log_of_a_controller_that_cannot_be_written_changes_no_exit_code(folder, room):
    made(folder)
    with room(20), log_to_run_folder(folder):
        logging.getLogger("torchyard").warning("x" * 100)


def test_a_full_disk_is_no_invalid_request(folder, full_disk):
    job = read_job({"metadata": {"name": folder.name}, "spec": SLEEP})
    with full_disk(), pytest.raises(TorchYardError, match=r"cannot be stored .*No space left.*free space") as raised:
        start(RequestedJob(job, folder.home, "train.yaml", is_file=True))
    assert raised.value.code == FAILED


async def test_events_wait_for_room_in_their_order_and_are_shown_at_once(folder, full_disk, until, monkeypatch):
    monkeypatch.setattr(events, "RETRY_SECONDS", 0.02)
    job = made(folder)
    cluster = LocalCluster(folder)
    with full_disk():
        for number in (1, 2):
            await cluster.emit_event(job, EmitEvent(type="Normal", reason="RoundOpened", message=f"round {number}"))
        shown = cluster.take_events()
        assert [event.reason for event in shown] == ["RoundOpened", "FolderNotWritable", "RoundOpened"]
        assert "No space left" in shown[1].message
    await until(lambda: run.events(folder) == shown, what="all of them are on disk")
    await cluster.close()


def test_a_run_without_a_controller_is_removed_without_writing_a_byte(folder, full_disk):
    made(folder)
    with full_disk() as refused:
        remove_run(folder)
    assert refused == []
    assert not folder.path.exists()


@pytest.mark.e2e
async def test_a_controller_whose_disk_is_full_continues_and_catches_up(folder, full_disk, until, monkeypatch):
    monkeypatch.setattr(events, "RETRY_SECONDS", 0.1)
    made(folder)
    stop = asyncio.Event()
    task = asyncio.create_task(run_job(folder, stop=stop))
    await until(lambda: [*folder.pods.glob("*/run/workers.json")], what="a worker runs")
    with full_disk() as refused:
        by_hand = folder.job_file.read_text().replace('"gracePeriod": "1s"', '"gracePeriod": "2s"')
        write_atomic(folder.job_file, by_hand.encode())
        await until(lambda: "job.yaml" in refused, what="the new generation cannot be written")
        assert not task.done()
        assert is_controlled(folder)
    await until(lambda: controller.read_run(folder).metadata.generation > 1, what="the edit is a new generation")
    stop.set()
    job = await asyncio.wait_for(task, DEADLINE)
    assert job.status.state == "Suspended"
    assert job.spec.grace_period == 2.0
    assert job.status.observed_generation == job.metadata.generation
    assert {"FolderNotWritable", "RoundOpened"} <= {event.reason for event in run.events(folder)}


@pytest.mark.e2e
@pytest.mark.parametrize("hard", [False, True])
async def test_a_stop_ends_everything_though_nothing_can_be_written(folder, full_disk, until, hard):
    made(folder)
    stop, kill, shown = asyncio.Event(), asyncio.Event(), []
    task = asyncio.create_task(run_job(folder, on_change=lambda _job, new: shown.extend(new), stop=stop, kill=kill))
    await until(lambda: [*folder.pods.glob("*/run/workers.json")], what="a worker runs")
    with full_disk():
        stop.set()
        if hard:
            kill.set()
        job = await asyncio.wait_for(task, DEADLINE)
    assert job.status.state == "Suspended"
    assert any("without a record" in event.message for event in shown)
    assert is_controlled(folder) is None
    assert controller.read_run(folder).spec.suspend is False


@pytest.mark.e2e
async def test_a_run_that_waits_for_space_ends_when_it_is_asked_to(folder, full_disk, until):
    made(folder)
    stop = asyncio.Event()
    with full_disk() as refused:
        task = asyncio.create_task(run_job(folder, stop=stop))
        await until(lambda: "status.json" in refused, what="its first status cannot be written")
        stop.set()
        await asyncio.wait_for(task, DEADLINE)
        assert not [*folder.pods.glob("*/pod.json")]


SPACE_AT_ITS_END = """
import resource, signal
from pathlib import Path
from torchyard_agent.telemetry.output import tolerate_full_disk
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
tolerate_full_disk(Path("rank-0.log"), Path("run"))
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
print("a line that nothing can take", flush=True)
resource.setrlimit(resource.RLIMIT_FSIZE, limits)
"""


def test_lines_that_were_dropped_are_reported_at_the_end_of_a_program_that_writes_no_more(tmp_path):
    (tmp_path / "run").mkdir()
    with (tmp_path / "rank-0.log").open("wb") as log:
        subprocess.run([sys.executable, "-c", SPACE_AT_ITS_END], cwd=tmp_path, stdout=log, check=True)
    assert (tmp_path / "rank-0.log").read_bytes() == b""
    assert "is full" in (tmp_path / "run" / "notice.rank-0.json").read_text()


FILLS = """
import os, time
from pathlib import Path
from torchyard_agent import report
kept, ballast = Path(os.environ["KEPT"]), Path("home/ballast")
first = int(kept.read_text()) if kept.exists() else 0
for step in range(first + 1, 31):
    while step == 30 and ballast.exists():
        time.sleep(0.01)
    print("x" * 40_000, flush=True)
    kept.write_text(str(step))
    report(step=step, total_steps=30, checkpoint_step=step)
"""
# A file system that only this process and its children see; it goes with them.
MOUNTED = 'mount -t tmpfs -o size=3000k tmpfs "$TORCHYARD_HOME" && head -c 1900k /dev/zero > "$TORCHYARD_HOME/ballast"'


@pytest.mark.e2e
def test_a_home_that_is_full_costs_lines_of_the_log_and_nothing_else(tmp_path):
    """The program prints on: its round goes on, and a warning says how much of its output is missing."""
    if subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("no file system can be mounted here: it takes root")
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "train.py").write_text(FILLS)
    env = {**os.environ, "TORCHYARD_HOME": str(home), "KEPT": str(tmp_path / "kept"), "OMP_NUM_THREADS": "1"}
    torchyard = Path(sys.executable).with_name("torchyard")
    status = tmp_path / "status.json"
    program = f"{MOUNTED} && {torchyard} run train.py --quiet && {torchyard} status train -o json > {status}"
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", program], cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stderr is not None
        said = []
        for line in run.stderr:
            said.append(line)
            if "No space left on device" in line:
                # The file systems of another process, as it sees them.
                Path(f"/proc/{run.pid}/root{home}/ballast").unlink(missing_ok=True)
        assert run.wait(DEADLINE) == 0, "".join(said)
    assert any(
        f"FolderNotWritable: the folder of the run cannot be written ({home}/runs/train/" in line for line in said
    ), "".join(said)
    assert (tmp_path / "kept").read_text() == "30"
    told = json.loads(status.read_text())["status"]
    assert told["round"] == 1, (told["attempts"], said)
    assert any("the step shown is the last one that could be reported" in each for each in told["warnings"]), told
