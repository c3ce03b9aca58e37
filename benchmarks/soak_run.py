"""The run that is soaked: its controlling process, its pods and workers, and its status."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

NAME = "soak"
TORCHYARD = Path(sys.executable).parent / "torchyard"
STOPPED = 75
# Ends what hangs; it is no measure of how long anything may take.
DEADLINE_SECONDS = 900.0


class Worker(NamedTuple):
    """A worker of the open round."""

    rank: int
    pid: int
    pod: str


class Pod(NamedTuple):
    """A pod that lives."""

    index: int
    name: str
    keeper: int
    agent: int


class StuckError(Exception):
    """What was waited for did not come."""


class Run:
    """One run under `home`. `document`: the job file's content."""

    def __init__(self, home: Path, document: dict[str, Any]) -> None:
        self.home, self.document = home, document
        self.folder = home / "runs" / NAME
        self.checkpoints = self.folder / "checkpoints"
        self.file = home / "job.yaml"
        self.scratch = home / "tmp"
        self.scratch.mkdir(parents=True, exist_ok=True)
        self.env = {**os.environ, "TORCHYARD_HOME": str(home), "TMPDIR": str(self.scratch), "OMP_NUM_THREADS": "1"}
        self.controller: subprocess.Popen[bytes] | None = None
        self.write_file()

    def write_file(self) -> None:
        self.file.write_text(yaml.safe_dump(self.document))

    # Commands.

    def control(self, *command: str) -> None:
        """Start a process that controls the run: `run` and its file, or `resume`."""
        with (self.home / "out").open("ab") as out:
            self.controller = subprocess.Popen(
                [TORCHYARD, *command], env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    def run(self) -> None:
        self.control("run", str(self.file))

    def resume(self) -> None:
        """Start a process that continues the run."""
        self.control("resume", NAME)

    def say(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A command of another terminal."""
        return subprocess.run(
            [TORCHYARD, *command], env=self.env, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
        )

    def end_controller(self, number: int) -> int:
        """Signal the controlling process and wait for its end; its exit code."""
        assert self.controller is not None
        self.controller.send_signal(number)
        return self.controller.wait(DEADLINE_SECONDS)

    # What is there.

    def status(self) -> dict[str, Any]:
        return read(self.folder / "status.json").get("status", {})

    def job(self) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load((self.folder / "job.yaml").read_text())
        return found

    def edit(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Edit `job.yaml` as a person with an editor does."""
        document = self.job()
        change(document["spec"])
        fresh = self.folder / "job.yaml.edited"
        fresh.write_text(yaml.safe_dump(document))
        fresh.replace(self.folder / "job.yaml")

    def events(self, skip: int = 0) -> list[dict[str, Any]]:
        try:
            lines = (self.folder / "events.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines[skip:]]

    def pods(self) -> list[Pod]:
        found = []
        for path in self.folder.glob("pods/*/pod.json"):
            pod, running = read(path), read(path.with_name("process.json"))
            if pod and running and alive(running["agent"]["pid"]):
                found.append(Pod(pod["index"], pod["name"], running["keeper"]["pid"], running["agent"]["pid"]))
        return sorted(found)

    def workers(self, number: int) -> list[Worker]:
        """The living workers of a round, by rank."""
        found = []
        for path in self.folder.glob("pods/*/run/workers.json"):
            told = read(path)
            if told.get("round") == number:
                found += [Worker(int(rank), pid, path.parts[-3]) for rank, pid in told["pids"].items() if alive(pid)]
        return sorted(found)

    def warnings(self, number: int) -> list[str]:
        """What rank 0 warns of in a round."""
        reports = (read(path) for path in self.folder.glob("pods/*/run/report.0.json"))
        return next((each["warnings"] for each in reports if (each.get("round"), each.get("rank")) == (number, 0)), [])

    def saved(self) -> list[int]:
        """Steps of committed checkpoints, oldest first."""
        return sorted(int(path.parent.name.removeprefix("step-")) for path in self.checkpoints.glob("step-*/COMMIT"))

    def weights(self) -> bytes:
        return (self.checkpoints / "final" / "model.safetensors").read_bytes()

    def processes(self) -> dict[str, int]:
        """Those that live through many faults: what they are, and their pids."""
        found = {}
        if self.controller is not None and self.controller.poll() is None:
            found["torchyard run"] = self.controller.pid
        for pod in self.pods():
            found |= {f"keeper {pod.index}": pod.keeper, f"agent {pod.index}": pod.agent}
            found |= {f"warm parent {pod.index}": pid for pid in children(pod.agent)[:1]}
        return found

    def left(self) -> list[str]:
        """Command lines of all processes whose environment names this home."""
        mark, found = str(self.home).encode(), []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (process / "environ").read_bytes() and alive(int(process.name)):
                    found.append(f"{process.name} {(process / 'cmdline').read_bytes().decode()[:200]}")
            except OSError:
                continue  # it has ended, or is another user's
        return found


def read(path: Path) -> dict[str, Any]:
    """A JSON document; empty while there is none."""
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found


def stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def alive(pid: int) -> bool:
    fields = stat(pid)
    return bool(fields) and fields[0] != "Z"


def children(parent: int) -> list[int]:
    pids = (int(entry.name) for entry in Path("/proc").glob("[0-9]*"))
    return sorted(pid for pid in pids if (fields := stat(pid)) and int(fields[1]) == parent)


def parent(pid: int) -> int:
    return int(stat(pid)[1])


def footprint(pid: int) -> tuple[int, int]:
    """Resident KiB of its own (files and shared pages left out), and open descriptors."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        return int(fields["RssAnon"].split()[0]), len([*Path(f"/proc/{pid}/fd").iterdir()])
    except (OSError, KeyError):
        return 0, 0


def until(condition: Callable[[], Any], what: str) -> Any:
    """Poll until it is so."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (seen := condition()):
        if time.monotonic() > deadline:
            raise StuckError(f"not within {DEADLINE_SECONDS:g} s: {what}")
        time.sleep(0.01)
    return seen
