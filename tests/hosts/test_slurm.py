"""A gang in an allocation of Slurm: one node each, saved at the time limit, queued again, continued."""

import json
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import CommandLine, eventually
from tests.support.hosts.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.e2e


def test_a_gang_is_saved_at_its_time_limit_and_continues_when_queued_again(
    login_node: CommandLine, slurm: SlurmCluster, tmp_path: Path
) -> None:
    checkpoints = tmp_path / "shared/runs/count/checkpoints"
    following = login_node.start(
        "run", "--slurm", "two", "--home", tmp_path / "shared", "--python", sys.executable, "--nodes", "2",
        "--fetch", "export/web=web", "--", "python", "count.py",
        stdout=(tmp_path / "out").open("w"), stderr=(tmp_path / "err").open("w"),
    )  # fmt: skip
    eventually((checkpoints / "step.0").exists)
    eventually((checkpoints / "step.1").exists)
    shown = login_node("stacks", "count", "-o", "json")
    assert [each["rank"] for each in json.loads(shown.stdout or "[]")] == [0, 1], shown.stderr
    (job,) = slurm.run("squeue", "--noheader", "--format=%i").split()
    slurm.run("scancel", "--batch", "--signal=TERM", job)  # as Slurm does before the time limit
    eventually(lambda: "PENDING" in slurm.run("squeue", "--noheader", "--format=%T"))
    saved = int((checkpoints / "step.0").read_text())
    eventually(lambda: int((checkpoints / "step.0").read_text()) > saved)
    assert following.poll() is None, "the view follows the run through the queue"
    (checkpoints / "enough").touch()
    assert following.wait() == 0, (tmp_path / "err").read_text()
    begun = [int(line.split()[-1]) for line in (tmp_path / "out").read_text().splitlines() if "rank 0] begins" in line]
    assert begun == [0, saved]
    assert (login_node.folder / "web/model.bin").exists()


def test_what_slurm_rejects_is_reported_with_its_message(login_node: CommandLine, tmp_path: Path) -> None:
    there = ("--home", tmp_path / "shared", "--python", sys.executable, "--", "python", "count.py")
    unknown = login_node("run", "--slurm", "three", *there)
    assert unknown.returncode != 0
    assert "no partition 'three'" in unknown.stderr
    ours = login_node("run", "--slurm", "two,nodes=3", *there)
    assert ours.returncode == 64
    assert "nodes is set by TorchYard" in ours.stderr
