"""`spec.trainer.name: MODULE:CLASS`: a workload beside the job file is planned and trained like a built-in one."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import CommandLine
from tests.support.waiting import DEADLINE, alive, until

WORKLOAD = Path(__file__).parents[1] / "support" / "worker_modules" / "char_lm.py"
JOB = """
apiVersion: torchyard.dev/v1alpha1
kind: TrainingJob
metadata: {name: chars}
spec:
  trainer: {name: "char_lm:CharLm", params: {steps: 8}}
  workingDir: src
  nodes: 2
  parallelism: {strategy: fsdp, precision: fp32}
"""

WAITS = """
import os, pathlib, signal
part = pathlib.Path(__file__).with_name("pid.part")
part.write_text(str(os.getpid()))
part.rename(part.with_name("pid"))
signal.pause()
"""


@pytest.fixture
def own(torchyard: CommandLine) -> CommandLine:
    (torchyard.folder / "src").mkdir()
    shutil.copy(WORKLOAD, torchyard.folder / "src")
    (torchyard.folder / "job.yaml").write_text(JOB)
    return torchyard


@pytest.mark.e2e
def test_it_is_trained_and_then_evaluated(own: CommandLine) -> None:
    run = own("run", "job.yaml", "-o", "json")
    assert run.returncode == 0, run.stderr
    status = json.loads(run.stdout)["status"]
    assert (status["progress"]["step"], status["metrics"]["evalLoss"] > 0) == (8, True)
    sets = ("metadata.name=measured", "spec.trainer.mode=eval", "spec.checkpoint.resumeFrom=chars")
    measured = own("run", "job.yaml", *(word for each in sets for word in ("--set", each)), "-o", "json")
    assert measured.returncode == 0, measured.stderr
    found = json.loads(measured.stdout)["status"]["metrics"]["evalLoss"]
    assert found == pytest.approx(status["metrics"]["evalLoss"], rel=1e-3)  # figures of a status are rounded


@pytest.mark.e2e
def test_a_wrong_parameter_ends_the_job_with_what_was_meant(own: CommandLine) -> None:
    run = own("run", "job.yaml", "--set", "spec.trainer.params.stesp=4")
    assert run.returncode == 64
    assert "exit code 64" in run.stderr
    assert "did you mean steps?" in run.stderr
    assert own("wait", "chars").returncode == 64


def test_it_is_planned_from_anywhere_and_not_started_by_being_planned(own: CommandLine, tmp_path: Path) -> None:
    found = own("plan", tmp_path / "job.yaml", "-o", "json")
    assert json.loads(found.stdout)["job"]["strategy"] == "fsdp", found.stderr
    (tmp_path / "src" / "char_lm.py").write_text("raise SystemExit('started')")
    looked_at = own("validate", "job.yaml")
    assert (looked_at.returncode, "started" in looked_at.stderr) == (0, False)
    assert "started" in own("plan", "job.yaml").stderr


@pytest.mark.usefixtures("own")
def test_a_command_that_is_ended_takes_what_it_has_started_with_it(tmp_path: Path) -> None:
    (tmp_path / "src" / "char_lm.py").write_text(WAITS)
    (tmp_path / "tmp").mkdir()
    command = [sys.executable, "-m", "torchyard.cli.main", "plan", str(tmp_path / "job.yaml")]
    with subprocess.Popen(command, env={**os.environ, "TMPDIR": str(tmp_path / "tmp")}) as process:
        try:
            pid = until((tmp_path / "src" / "pid").read_text)
            process.terminate()
            assert process.wait(DEADLINE) == -signal.SIGTERM
        finally:
            process.kill()
    assert not alive(pid)
    assert not list((tmp_path / "tmp").iterdir())
