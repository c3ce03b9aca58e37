"""Runs from their start to their end through the executable: views, exit codes, Ctrl-C, stop, resume, rm, demo."""

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.cli.conftest import EXECUTABLE, CommandLine, eventually
from tests.support.waiting import DEADLINE

from torchyard.local.shared_templates import OWNER

pytestmark = pytest.mark.e2e

COUNTS = """
import os, pathlib, time
folder = pathlib.Path(os.environ["TORCHYARD_CHECKPOINT_DIR"])
done = folder / "done.txt"
step = int(done.read_text()) if done.exists() else 0
while step < 300:
    make_step()
    step += 1
    (folder / "next.txt").write_text(str(step))
    (folder / "next.txt").replace(done)  # a stop at this moment leaves the old number or the new one
    print(f"step {step}", flush=True)
    if not (folder / "hurry").exists():
        time.sleep(0.1)
"""
SLOW = (
    """
import torch
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
def make_step():
    weight.grad = torch.ones(1)
    optimizer.step()
"""
    + COUNTS
)
CATCHES = (
    """
import os, pathlib, signal, sys, time
folder = pathlib.Path(os.environ["TORCHYARD_CHECKPOINT_DIR"])
def save(number, frame):
    time.sleep(1)
    (folder / "saved").touch()
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
"""
    + COUNTS
)
FAST = COUNTS.replace("time.sleep(0.1)", "time.sleep(0.01)")


@pytest.fixture
def torchyard(torchyard: CommandLine) -> CommandLine:
    """Start everything as a user does, who shares nothing between runs."""
    del torchyard.env[OWNER]
    return torchyard


def plain(program: str) -> dict[str, object]:
    """Return the spec of a program without torch and torchrun, whose start is most of what a short run takes.

    Its steps are read from its output: a program that reports nothing counts as running only after half a minute.
    """
    program = program.replace("    make_step()\n", "")
    return {"command": [sys.executable, "-c", program], "metrics": {"patterns": [r"step (?P<step>\d+)"]}}


def controlled(program: str) -> dict[str, object]:
    """Return the spec of such a program that ends no sooner than it is asked to hurry."""
    return plain(program.replace("step < 300:", 'step < 300 or not (folder / "hurry").exists():'))


def job(torchyard: CommandLine, script: str | None, name: str = "job", **spec: object) -> str:
    document = {
        "apiVersion": "torchyard.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {**({"script": script} if script else {}), "gracePeriod": "5s", **spec},
    }
    (torchyard.folder / f"{name}.yaml").write_text(json.dumps(document))
    return f"{name}.yaml"


def steps_of(torchyard: CommandLine, name: str = "job") -> int:
    try:
        return int((torchyard.run_folder(name) / "checkpoints" / "done.txt").read_text() or 0)
    except (FileNotFoundError, ValueError):
        return 0


def is_running(torchyard: CommandLine, name: str = "job") -> bool:
    """Whether the status says so and a few steps are made."""
    try:
        document = json.loads((torchyard.run_folder(name) / "status.json").read_text())
    except (FileNotFoundError, ValueError):
        return False
    return bool(document["status"].get("state") == "Running") and steps_of(torchyard, name) >= 3


def put_in_the_way(file: Path) -> bool:
    """Have a folder where a controller writes its file; False if it wrote at this moment."""
    try:
        file.unlink(missing_ok=True)
        (file / "in-the-way").mkdir(parents=True)
    except (FileExistsError, NotADirectoryError):
        return False
    return True


def processes_of(torchyard: CommandLine) -> list[str]:
    """Commands of every process of a run: its folder is in the environment of agents and workers."""
    mark = f"={torchyard.home}/runs/".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text())
    return found


def test_without_a_terminal_there_are_plain_lines(torchyard: CommandLine) -> None:
    done = torchyard("run", job(torchyard, None, **plain(FAST)), "--name", "other", "-q", "-o", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["metadata"]["name"], found["status"]["state"]) == ("other", "Succeeded")
    assert "\x1b" not in done.stderr
    lines = done.stderr.splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d ", line) for line in lines[:-3])
    assert any(re.match(r"\d\d:\d\d:\d\d (Starting|Running) round 1", line) for line in lines)
    assert "other succeeded" in done.stderr


def test_a_job_that_fails_names_the_cause_and_exits_1(torchyard: CommandLine) -> None:
    script = "print('about to fail')\nraise RuntimeError('no such luck')"
    done = torchyard("run", job(torchyard, script, restart={"policy": "Never"}))
    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == "about to fail"
    assert done.stdout.splitlines()[-1] == "RuntimeError: no such luck"
    assert "RuntimeError: no such luck" in done.stderr
    assert "about to fail" in torchyard("logs", "job").stdout
    shown = torchyard("status", "job").stdout
    assert "Failed" in shown.splitlines()[0]
    assert "rank 0" in shown
    assert "no such luck" in shown
    assert torchyard("resume", "job").returncode == 64


def test_ctrl_c_stops_and_resume_finishes(torchyard: CommandLine) -> None:
    process = torchyard.start("run", job(torchyard, None, **controlled(COUNTS)))
    eventually(lambda: is_running(torchyard))
    busy = torchyard("run", "job.yaml")
    assert busy.returncode == 64
    assert "controlled by process" in busy.stderr
    assert processes_of(torchyard)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=DEADLINE)
    assert process.returncode == 75, stderr
    assert "saving and stopping; press Ctrl-C again to stop now" in stderr
    assert "torchyard resume job" in stderr
    assert processes_of(torchyard) == []
    stopped_at = steps_of(torchyard)
    (torchyard.run_folder("job") / "checkpoints" / "hurry").touch()
    done = torchyard("resume", "job", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"]["state"] == "Succeeded"
    log = torchyard("logs", "job").stdout
    assert log.count(f"step {stopped_at + 1}\n") <= 1
    assert "step 300\n" in log
    assert torchyard("resume", "job").returncode == 0


def test_a_second_ctrl_c_stops_now(torchyard: CommandLine) -> None:
    stubborn = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + COUNTS
    process = torchyard.start("run", job(torchyard, None, **controlled(stubborn), gracePeriod="10m"))
    eventually(lambda: is_running(torchyard))
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    lines = iter(process.stderr.readline, "")
    assert any("press Ctrl-C again" in line for line in lines)
    start = time.monotonic()
    eventually(lambda: time.monotonic() - start > 0.6)  # a second press, not an echo of the first
    process.send_signal(signal.SIGINT)
    assert any("stopping now" in line for line in lines)
    assert process.wait(timeout=DEADLINE) in {75, 130}, "before the grace period is over"
    assert processes_of(torchyard) == []


def test_a_closed_terminal_saves_and_stops(torchyard: CommandLine) -> None:
    process = torchyard.start("run", job(torchyard, None, **controlled(CATCHES), gracePeriod="30s"))
    eventually(lambda: is_running(torchyard))
    process.send_signal(signal.SIGHUP)
    assert process.stderr is not None
    assert any("saving and stopping" in line for line in iter(process.stderr.readline, ""))
    process.send_signal(signal.SIGHUP)
    _, stderr = process.communicate(timeout=DEADLINE)
    assert process.returncode == 75, stderr
    assert (torchyard.run_folder("job") / "checkpoints" / "saved").exists(), "the program was given its time to save"


def test_another_terminal_can_follow_stop_and_remove(torchyard: CommandLine) -> None:
    process = torchyard.start("run", job(torchyard, None, **controlled(COUNTS)))
    eventually(lambda: is_running(torchyard))
    assert "Running" in torchyard("ps").stdout
    assert torchyard("rm", "job").returncode == 64
    follow = torchyard.start("logs", "job", "-f")
    assert follow.stdout is not None
    assert follow.stdout.readline().startswith("[r0 job-")
    stopped = torchyard("stop", "job")
    assert stopped.returncode == 75, stopped.stderr
    process.communicate(timeout=DEADLINE)
    assert process.returncode == 75
    assert follow.wait(timeout=DEADLINE) == 0
    assert "Suspended" in torchyard("ps").stdout
    assert torchyard("rm", "job").returncode == 0
    assert not torchyard.run_folder("job").exists()


def test_stop_finishes_what_a_controller_that_dies_left_undone(torchyard: CommandLine) -> None:
    controller = torchyard.start("run", job(torchyard, None, **controlled(CATCHES), gracePeriod="30s"))
    eventually(lambda: is_running(torchyard))
    controller.send_signal(signal.SIGSTOP)  # it can no longer do what it is asked for
    stop = torchyard.start("stop", "job")
    eventually(lambda: '"suspend": true' in (torchyard.run_folder("job") / "job.yaml").read_text())
    controller.kill()
    controller.communicate(timeout=DEADLINE)
    _, stderr = stop.communicate(timeout=DEADLINE)
    assert stop.returncode == 75, stderr
    assert "stopped" in stderr
    status = json.loads((torchyard.run_folder("job") / "status.json").read_text())["status"]
    assert status["state"] == "Suspended"
    assert (torchyard.run_folder("job") / "checkpoints" / "saved").exists()
    assert processes_of(torchyard) == []


def test_the_live_view_draws_on_a_real_terminal(torchyard: CommandLine) -> None:
    leader, follower = pty.openpty()
    os.set_blocking(leader, False)
    process = torchyard.start("run", job(torchyard, SLOW), stdout=subprocess.PIPE, stderr=follower)
    os.close(follower)
    said: list[bytes] = []

    def read() -> None:
        while True:
            select.select([leader], [], [], 1)
            try:
                part = os.read(leader, 65536)
            except BlockingIOError:
                continue
            except OSError:  # the other end is closed
                return
            said.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        eventually(lambda: is_running(torchyard))
        (torchyard.run_folder("job") / "checkpoints" / "hurry").touch()
        stdout, _ = process.communicate(timeout=DEADLINE)
    finally:
        reader.join(timeout=DEADLINE)
        os.close(leader)
    screen = b"".join(said).decode()
    assert process.returncode == 0, screen
    assert stdout.splitlines()[-1] == "step 300", "a pipe gets what the program writes"
    assert "Traceback" not in screen
    for part in ("output", "Running", "round 1", "job-", "local-0", "Succeeded", "\x1b[?25h"):
        assert part in screen, part
    assert screen.rindex("Succeeded") > screen.rindex("Running")


@pytest.mark.parametrize("ends", ["later", "before it is reattached"])
def test_a_run_of_a_killed_controller_is_reattached(torchyard: CommandLine, ends: str) -> None:
    (torchyard.folder / "loop.py").write_text(
        "import os, pathlib, sys, time\n"
        "print('waiting for', *sys.argv[1:], os.environ['COLOUR'], flush=True)\n"
        "while not pathlib.Path(os.environ['TORCHYARD_CHECKPOINT_DIR'], 'end').exists():\n"
        "    time.sleep(0.05)\n"
        "print('end', flush=True)\n"
    )
    process = torchyard.start("run", "--env", "COLOUR=green", "--", sys.executable, "loop.py", "--the", "end")
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting for --the end green\n"
    process.kill()
    process.communicate(timeout=DEADLINE)
    shown = torchyard("status", "loop").stdout
    assert shown.splitlines()[0].startswith("loop  Detached")
    assert "Still training, detached" in shown
    assert "`torchyard resume loop` reattaches" in shown
    (worker,) = re.findall("rank 0 ([0-9]+)", shown)
    assert b"--the" in Path(f"/proc/{worker}/cmdline").read_bytes()
    assert torchyard("ps").stdout.splitlines()[1].split()[:2] == ["loop", "Detached"]
    waited = torchyard("wait", "loop")
    assert waited.returncode == 1
    assert "its pods are alive, but no process follows them or would notice the end" in waited.stderr
    assert torchyard("rm", "loop").returncode == 64, "it is going on"
    if ends == "before it is reattached":
        (torchyard.run_folder("loop") / "checkpoints" / "end").touch()
        eventually(lambda: "none of its workers runs: they may have ended" in torchyard("status", "loop").stdout)
    resumed = torchyard.start("resume", "loop")
    assert resumed.stderr is not None
    assert resumed.stderr.readline(), "it is controlled again"
    (torchyard.run_folder("loop") / "checkpoints" / "end").touch()
    stdout, stderr = resumed.communicate(timeout=DEADLINE)
    assert (resumed.returncode, stdout) == (0, "end\n" if ends == "later" else ""), stderr
    assert "loop succeeded" in stderr
    assert "next: torchyard fetch loop end" in stderr
    assert Path(f"/proc/{worker}").exists() is False


def test_the_object_is_printed_without_a_reader_of_the_view(torchyard: CommandLine) -> None:
    process = torchyard.start("run", job(torchyard, None, command=[sys.executable, "-c", "print(1)"]), "-o", "json")
    assert process.stderr is not None
    assert process.stderr.readline()
    process.stderr.close()
    assert process.stdout is not None
    document = json.loads(process.stdout.read())
    assert document["status"]["state"] == "Succeeded"
    assert process.wait(timeout=DEADLINE) == 0


def test_errors_of_the_controller_go_to_its_log(torchyard: CommandLine) -> None:
    process = torchyard.start("run", job(torchyard, None, **controlled(COUNTS)))
    eventually(lambda: is_running(torchyard))
    folder = torchyard.run_folder("job")
    eventually(lambda: put_in_the_way(folder / "status.json"))
    (folder / "checkpoints" / "hurry").touch()
    log = folder / "controller.log"
    eventually(lambda: log.exists() and "retrying: " in log.read_text())
    (folder / "status.json" / "in-the-way").rmdir()
    (folder / "status.json").rmdir()
    _, stderr = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, stderr
    assert "retrying: " not in stderr
    assert "Traceback" not in stderr


def test_the_demo_trains_and_shows_what_was_learned(torchyard: CommandLine) -> None:
    done = torchyard("demo", "--set", "spec.trainer.params.steps=20")
    assert done.returncode == 0, done.stderr
    assert "nearest neighbour" in done.stdout
    assert "after 20 steps" in done.stdout


def test_the_executable_is_the_one_that_was_installed() -> None:
    assert os.access(EXECUTABLE, os.X_OK)


def test_more_gpus_than_the_machine_has_are_refused(torchyard: CommandLine) -> None:
    refused = torchyard("run", job(torchyard, SLOW, nodes=2, gpusPerNode=64))
    assert refused.returncode == 64
    assert "the job needs 128 GPUs (2 nodes x gpusPerNode 64) and this machine has" in refused.stderr
    assert "--set gpusPerNode=0" in refused.stderr
    assert not torchyard.run_folder("job").exists()


def test_a_run_is_not_resumed_on_a_machine_that_lost_its_gpus(torchyard: CommandLine) -> None:
    folder = torchyard.record("former", {"state": "Suspended"})
    file = folder / "job.yaml"
    file.write_text(file.read_text().replace("nodes: 2", "nodes: 2, gpusPerNode: 64, suspend: true"))
    refused = torchyard("resume", "former")
    assert refused.returncode == 64
    assert "the job needs 128 GPUs" in refused.stderr
    assert "suspend: true" in file.read_text()
