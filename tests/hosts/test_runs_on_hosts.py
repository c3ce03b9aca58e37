"""A run on machines that only ssh reaches: it is started there, lives there, and outlives whatever is killed."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import CommandLine, eventually
from tests.support.hosts.machines import Machine, Machines

pytestmark = pytest.mark.e2e

GANG = "alpha=127.0.0.1,beta=127.0.0.2"
STEPS = 'metrics.patterns=["step (?P<step>[0-9]+)"]'


def test_one_command_runs_there_and_brings_the_export_back(laptop: CommandLine, machines: Machines) -> None:
    enough(machines["alpha"])
    ran = laptop(
        "run", "--host", "alpha", "--python", sys.executable, "--fetch", "export/web=web/public",
        "--", "python", "count.py",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "begins at 0" in ran.stdout
    assert (laptop.folder / "web/public/model.bin").read_bytes() == bytes(range(256))
    assert "Succeeded" in laptop("status", "count").stdout
    assert "begins at 0" in laptop("logs", "count").stdout
    assert "count (alpha)" in laptop("ps").stderr
    assert laptop("fetch", "count", "nothing").returncode == 64
    assert laptop("rm", "count").returncode == 0
    assert not (machines["alpha"].home / ".torchyard/runs/count").exists()
    assert "there is no run" in laptop("status", "count").stderr


def test_a_gang_of_two_hosts_outlives_everything_that_is_killed(laptop: CommandLine, machines: Machines) -> None:
    alpha, beta = machines["alpha"], machines["beta"]
    following = laptop.start(
        "run", "--host", GANG, "--python", sys.executable, "--set", STEPS, "--", "python", "count.py",
        stdout=(laptop.home.parent / "out").open("w"), stderr=(laptop.home.parent / "err").open("w"),
    )  # fmt: skip
    eventually(lambda: steps(alpha, 0) and steps(beta, 1))

    alpha.cut()
    eventually(lambda: "the connection to alpha is cut" in (laptop.home.parent / "err").read_text())
    alpha.start()

    before = steps(alpha, 0), steps(beta, 1)
    for home, process in ((alpha.home, "control"), (beta.home, "node")):
        os.kill(hosted(home, process), signal.SIGKILL)
    eventually(lambda: steps(alpha, 0) > before[0] and steps(beta, 1) > before[1])
    eventually(lambda: hosted(alpha.home, "control") and hosted(beta.home, "node"))
    assert status(alpha)["round"] == 1

    os.kill(worker(beta), signal.SIGKILL)
    eventually(lambda: status(alpha)["round"] == 2)
    os.kill(agent(beta), signal.SIGKILL)
    eventually(lambda: status(alpha)["round"] == 3)
    before = steps(beta, 1)
    eventually(lambda: steps(beta, 1) > before)

    shown = laptop("stacks", "count", "-o", "json")
    assert [each["rank"] for each in json.loads(shown.stdout)] == [0, 1], shown.stderr
    assert "[r1 " in laptop("logs", "count", "--rank", "1").stdout
    assert laptop("stop", "count").returncode == 75
    assert following.wait() == 75
    eventually(lambda: not hosted(alpha.home, "control") and not hosted(beta.home, "node"))

    for machine in (alpha, beta):
        enough(machine)
    resumed = laptop("resume", "count")
    assert resumed.returncode == 0, resumed.stderr
    lines = [line for line in (laptop.home.parent / "out").read_text().splitlines() if line.startswith("[rank 0] step")]
    assert lines == sorted(set(lines), key=lambda line: int(line.split()[-1])), "a line was lost or shown twice"


def enough(machine: Machine) -> None:
    """Make the program end."""
    folder = machine.home / ".torchyard/runs/count/checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "enough").touch()


def steps(machine: Machine, index: int) -> int:
    file = machine.home / f".torchyard/runs/count/checkpoints/step.{index}"
    return int(file.read_text()) if file.exists() else 0


def status(machine: Machine) -> dict[str, Any]:
    file = machine.home / ".torchyard/runs/count/status.json"
    found: dict[str, Any] = json.loads(file.read_text())["status"] if file.exists() else {}
    return found


def hosted(home: Path, request: str) -> int:
    """Return the process of a machine that carries out a request; 0: there is none."""
    return next((pid for pid, words in _processes(home) if words[3:5] == ["torchyard.cli.hosted", request]), 0)


def agent(machine: Machine) -> int:
    pods = machine.home.glob(".torchyard/nodes/*/runs/count/pods/*/process.json")
    newest: int = json.loads(max(pods, key=lambda path: path.stat().st_mtime_ns).read_text())["agent"]["pid"]
    return newest


def worker(machine: Machine) -> int:
    return next(pid for pid, words in _processes(machine.home) if words[-1:] == ["count.py"])


def _processes(home: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the processes that were started below a home folder: number and command line."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes().split(b"\0")
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
            except OSError:
                continue
            if f"HOME={home}".encode() in environment and words:
                yield int(entry.name), words
