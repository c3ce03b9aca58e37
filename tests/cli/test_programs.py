"""Which `torchrun` and `python` a run starts: those of the active environment, which may not be TorchYard's."""

import os
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import CommandLine

from torchyard.api.resource import TrainingJob, read_job
from torchyard.local.environment import OWN_PROGRAMS, pod_environment, programs_of_shell, with_programs
from torchyard.local.record import PodRecord
from torchyard.local.run import RunFolder

PRINTS = "import os; print('active' if 'ACTIVE' in os.environ else 'own')"


def job(**spec: object) -> TrainingJob:
    kind = {"apiVersion": "torchyard.dev/v1alpha1", "kind": "TrainingJob"}
    return read_job({**kind, "metadata": {"name": "train", "uid": "u-1"}, "spec": spec})


def first_on_path(job: TrainingJob, folder: Path, path: str) -> str:
    pod = PodRecord(
        uid="p-1", job_uid="u-1", name="train-0", index=0, incarnation=1, address="127.0.0.1", created=0.0, url=""
    )
    return pod_environment({"PATH": path}, job, pod, RunFolder(folder), cores=2)["PATH"].split(os.pathsep)[0]


@pytest.fixture
def active(tmp_path: Path) -> Path:
    """Return the folder of an environment whose `python` sets a variable that TorchYard's does not set."""
    programs = tmp_path / "env" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").write_text(f'#!/bin/sh\nACTIVE=1 exec {sys.executable} "$@"\n')
    (programs / "torchrun").write_text(f"#!{programs}/python\nfrom torch.distributed.run import main\nmain()\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    return programs


def test_commands_are_those_of_the_shell_also_when_the_run_goes_on_in_another(tmp_path, active, monkeypatch) -> None:
    monkeypatch.setenv("PATH", f"{active}:/usr/bin:/bin")
    started = with_programs(job(command=["torchrun", "train.py"]), programs_of_shell())
    assert first_on_path(started, tmp_path, "/usr/bin:/bin") == str(active)


def test_the_order_of_the_shells_path_is_kept_where_it_leads_to_the_same_torchrun(
    tmp_path, active, monkeypatch
) -> None:
    mine = tmp_path / "bin"
    path = f"{mine}:{active}:/usr/bin:/bin"
    monkeypatch.setenv("PATH", path)
    started = with_programs(job(command=["python", "train.py"]), programs_of_shell())
    assert first_on_path(started, tmp_path, path) == str(mine), "what it has is what the shell would start"


def test_commands_are_our_own_where_the_shell_has_no_torchrun(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    started = with_programs(job(command=["python", "train.py"]), programs_of_shell())
    assert first_on_path(started, tmp_path, "/usr/bin:/bin") == str(OWN_PROGRAMS)


@pytest.mark.parametrize("named", [True, False], ids=["in a shell", "from Python"])
def test_built_in_workloads_run_where_they_are_installed(tmp_path, active, named) -> None:
    built_in = job(trainer={"name": "cvrp"})
    started = with_programs(built_in, active) if named else built_in
    assert first_on_path(started, tmp_path, f"{active}:/usr/bin:/bin") == str(OWN_PROGRAMS)


def test_a_job_that_names_no_environment_runs_in_that_of_torchyard(tmp_path, active) -> None:
    function = job(script="print(1)")
    assert first_on_path(function, tmp_path, f"{active}:/usr/bin:/bin") == str(OWN_PROGRAMS)


@pytest.mark.e2e
def test_a_program_of_the_active_environment_runs_and_its_folder_is_named(torchyard: CommandLine, active) -> None:
    torchyard.env["PATH"] = f"{active}:/usr/bin:/bin"
    done = torchyard("run", "--name", "active", "--", "python", "-c", PRINTS)
    assert (done.returncode, done.stdout) == (0, "active\n"), done.stderr
    assert f"torchrun is that of {active}" in done.stderr
