"""The `torchyard` executable under a home of its own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.shared_templates import SHARED
from tests.support.waiting import DEADLINE
from tests.support.warm_commands import WarmCommands

from torchyard.client import trainers

EXECUTABLE = str(Path(sys.executable).with_name("torchyard"))
EXAMPLES = Path(__file__).parents[2] / "examples"


WARM = WarmCommands("torchyard")
WARM_TRAINERS = WarmCommands("torchyard_trainers")


class CommandLine:
    """Runs `torchyard` as a user does: another process, no terminal, its own $TORCHYARD_HOME.

    A call may fork that process from one that has imported what commands import. `starts` is set by tests about
    start-up and imports, and by end-to-end tests.
    """

    def __init__(self, folder: Path, *, starts: bool = False) -> None:
        self.starts = starts
        self.folder = folder
        self.home = folder / "home"
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("TORCHYARD_", "PYTEST_"))},
            **SHARED,
            "TORCHYARD_HOME": str(self.home),
        }

    def __call__(self, *words: object) -> subprocess.CompletedProcess[str]:
        if not self.starts and WARM.can_run(self.env):
            return WARM.run([*map(str, words)], self.folder, self.env, DEADLINE)
        return subprocess.run(
            [EXECUTABLE, *map(str, words)],
            cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=DEADLINE, check=False,
        )  # fmt: skip

    def start(self, *words: object, **settings: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [EXECUTABLE, *map(str, words)],
            cwd=self.folder,
            env=self.env,
            text=True,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **settings},
        )

    def run_folder(self, name: str) -> Path:
        return self.home / "runs" / name

    def has_logged(self, name: str, text: str) -> bool:
        """Return whether a rank's log has `text`; reading it costs less than starting `torchyard logs` in a loop."""
        return any(text in log.read_text() for log in self.run_folder(name).glob("pods/*/logs/rank-*.log"))

    def record(self, name: str, status: dict[str, Any] | None = None) -> Path:
        """Create a run without a controlling process, with the files of a real one."""
        folder = self.run_folder(name)
        folder.mkdir(parents=True)
        (folder / "job.yaml").write_text(
            "apiVersion: torchyard.dev/v1alpha1\nkind: TrainingJob\n"
            f"metadata: {{name: {name}, uid: u-1, creationTimestamp: '2026-11-21T06:55:50Z'}}\n"
            "spec: {trainer: {name: cvrp}, nodes: 2}\n"
        )
        if status is not None:
            document = {"metadata": {"name": name, "namespace": "default", "uid": "u-1"}, "status": status}
            (folder / "status.json").write_text(json.dumps(document))
        return folder


@pytest.fixture
def torchyard(tmp_path: Path, shared_cache: Path, request: pytest.FixtureRequest) -> Iterator[CommandLine]:
    is_e2e = request.node.get_closest_marker("e2e") is not None
    line = CommandLine(tmp_path, starts=is_e2e)
    if is_e2e:  # the agent's archive is built once
        line.home.mkdir()
        (line.home / "cache").symlink_to(shared_cache)
    yield line
    for run in (line.home / "runs").glob("*/lock"):  # nothing a test started outlives it
        line("rm", "--force", run.parent.name).check_returncode()


@pytest.fixture
def warm_trainers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the trainers' process, which commands of this process ask, from one that has imported torch."""

    def run(command: list[str], **settings: Any) -> subprocess.CompletedProcess[str]:
        own, environment = [sys.executable, "-P", "-m", "torchyard_trainers"], settings["env"]
        if command[: len(own)] != own or not WARM_TRAINERS.can_run(environment):
            return subprocess.run(command, **settings)  # noqa: PLW1510 - it is one of the settings
        return WARM_TRAINERS.run(command[len(own) :], Path.cwd(), environment, timeout=DEADLINE)

    monkeypatch.setattr(trainers, "subprocess", SimpleNamespace(run=run))


def eventually(condition: Callable[[], Any]) -> Any:
    """The first true value of `condition`."""
    deadline = time.monotonic() + DEADLINE
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
    return value
