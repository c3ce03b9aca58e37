"""Which `torchrun` and `python` a run starts: those of the active environment, which may not be TorchYard's."""

import json
import os
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import CommandLine

from torchyard.api.resource import TrainingJob, read_job
from torchyard.local.environment import OWN_PROGRAMS, pod_environment, programs_of_shell, with_programs
from torchyard.local.record import PodRecord
from torchyard.local.run import RunFolder
from torchyard.local.zipapp import agent_zipapp
from torchyard_agent import settings
from torchyard_agent.workers.environment import worker_environment

PRINTS = "import os; print('active' if 'ACTIVE' in os.environ else 'own')"


def job(**spec: object) -> TrainingJob:
    kind = {"apiVersion": "torchyard.dev/v1alpha1", "kind": "TrainingJob"}
    return read_job({**kind, "metadata": {"name": "train", "uid": "u-1"}, "spec": spec})


def environment(job: TrainingJob, folder: Path, inherited: dict[str, str]) -> dict[str, str]:
    pod = PodRecord(
        uid="p-1",
        job_uid="u-1",
        name="train-0",
        index=0,
        incarnation=1,
        address="127.0.0.1",
        created=0.0,
        url="unix:/x",
    )
    return pod_environment(inherited, job, pod, RunFolder(folder), cores=8)


def first_on_path(job: TrainingJob, folder: Path, path: str) -> str:
    return environment(job, folder, {"PATH": path})["PATH"].split(os.pathsep)[0]


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


@pytest.mark.parametrize("threads", [{}, {"OMP_NUM_THREADS": "3"}])
def test_a_run_that_a_program_starts_has_the_environment_of_the_user(tmp_path, monkeypatch, threads) -> None:
    monkeypatch.setattr("torchyard_agent.workers.environment.LOCATION", "/cache/torchyard-agent-0123abcd.pyz")
    users = {
        "TMPDIR": "/t",
        "HOME": "/h",
        "XDG_CACHE_HOME": "/c",
        "KUBECONFIG": "/k",
        "TORCHYARD_DEBUG": "1",
        **threads,
    }
    inherited = {**users, "PATH": "/bin", "PYTHONPATH": "/mine", "TORCHYARD_HOME": "x", "PET_NNODES": "9", "RANK": "1"}

    def worker(env: dict[str, str]) -> dict[str, str]:
        return worker_environment(env, settings.read(["--", "x"], env), "http://x", Path("token"), gpus=1)

    home = tmp_path / "home"
    outer = worker(environment(job(command=["x"]), home / "runs" / "outer", inherited))
    inner = worker(environment(job(command=["x"], procsPerNode=4), home / "runs" / "inner", outer))
    for env in (outer, inner):
        assert users.items() <= env.items()
        assert env["TORCHYARD_HOME"] == str(home)
        assert env["PYTHONPATH"].split(os.pathsep)[1:-1] == ["/mine"], "between the hooks and the agent of its own run"
        assert "outer" not in "".join(inner.values())
    assert inner["OMP_NUM_THREADS"] == threads.get("OMP_NUM_THREADS", "2")


def test_the_archive_of_another_runs_agent_is_no_source_of_one(tmp_path, monkeypatch) -> None:
    outer = agent_zipapp(tmp_path / "outer")
    monkeypatch.syspath_prepend(str(outer))
    monkeypatch.setenv("PYTHONPATH", str(outer))
    monkeypatch.setenv("TORCHYARD_RUN_DIR", "/run")
    assert agent_zipapp(tmp_path / "inner").read_bytes() == outer.read_bytes()


@pytest.mark.e2e
def test_a_program_of_the_active_environment_runs_and_its_folder_is_named(torchyard: CommandLine, active) -> None:
    torchyard.env["PATH"] = f"{active}:/usr/bin:/bin"
    done = torchyard("run", "--name", "active", "--", "python", "-c", PRINTS)
    assert (done.returncode, done.stdout) == (0, "active\n"), done.stderr
    assert f"torchrun is the one of {active}" in done.stderr


@pytest.mark.e2e
def test_emoji_reach_the_program_from_everywhere(torchyard: CommandLine) -> None:
    torchyard.folder /= "földer 🎉"
    torchyard.folder.mkdir()
    source = "import json, os, sys; print(json.dumps(['🎉', *sys.argv, os.getcwd(), os.environ['X']]))"
    (torchyard.folder / "spiel 🎉\u2028.py").write_text(source)
    words = ["--name", "party", "--env", "X=🎉", "--", sys.executable, "spiel 🎉\u2028.py", "🎉\n\x85"]
    assert torchyard("run", *words[:4], "--save", "job 🎉.yaml", *words[4:]).returncode == 0
    done = torchyard("run", "job 🎉.yaml")
    shown = ["🎉", "spiel 🎉\u2028.py", "🎉\n\x85", str(torchyard.folder), "🎉"]
    assert json.loads(done.stdout) == shown, done.stderr
    (torchyard.folder / "printed.yaml").write_text(torchyard("status", "party", "-o", "yaml").stdout)
    torchyard.folder = torchyard.folder.parent
    again = torchyard("run", "földer 🎉/printed.yaml", "--name", "again")
    assert json.loads(again.stdout) == shown, again.stderr


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("run", ("--watch",)),
        ("run", ("--fetch", "final=out")),
        ("run", ("--host", "gpu-box")),
        ("run", ("-o", "json")),
        ("submit", ("--dry-run",)),
        ("submit", ("-n", "team")),
    ],
)
def test_an_option_that_only_a_started_job_follows_is_refused_beside_save(
    torchyard: CommandLine, command: str, options: tuple[str, ...]
) -> None:
    (torchyard.folder / "train.py").write_text("1\n")
    refused = torchyard(command, "train.py", "--save", "job.yaml", *options)
    assert (refused.returncode, "--save writes a job file and starts nothing" in refused.stderr) == (64, True)
    assert not (torchyard.folder / "job.yaml").exists()


def test_files_that_go_with_the_pods_are_not_promised(torchyard: CommandLine) -> None:
    (torchyard.folder / "train.py").write_text("1\n")
    refused = torchyard("submit", "train.py", "--fetch", "export/web=web")
    assert (refused.returncode, "name a claim in checkpoint.volume" in refused.stderr) == (64, True)
