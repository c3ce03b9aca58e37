"""Two machines on loopback addresses, and the command line of a third one."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.cli.conftest import CommandLine
from tests.support.hosts.machines import Machines, two_machines
from tests.support.hosts.slurm_cluster import SlurmCluster, slurm_cluster

PROGRAM = """
import os, pathlib, sys, time
mine = pathlib.Path(os.environ["TORCHYARD_CHECKPOINT_DIR"], f"step.{os.environ['TORCHYARD_POD_INDEX']}")
step = int(mine.read_text()) if mine.exists() else 0
print("begins at", step, flush=True)
while not pathlib.Path(os.environ["TORCHYARD_CHECKPOINT_DIR"], "enough").exists():
    step += 1
    fresh = mine.with_suffix(".new")
    fresh.write_text(str(step))
    fresh.replace(mine)
    print("step", step, flush=True)
    time.sleep(0.2)
export = mine.with_name("export") / "web"
export.mkdir(parents=True, exist_ok=True)
(export / "model.bin").write_bytes(bytes(range(256)))
"""


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with two_machines(tmp_path / "machines") as machines:
        yield machines


@pytest.fixture
def laptop(tmp_path: Path, machines: Machines) -> CommandLine:
    """The command line in a folder with code; ssh knows the machines by name."""
    return _in_folder_with_code(tmp_path, {"TORCHYARD_SSH": machines.ssh})


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path / "slurm") as cluster:
        yield cluster


@pytest.fixture
def login_node(tmp_path: Path, slurm: SlurmCluster) -> CommandLine:
    """The command line in a folder with code, where `sbatch` is on PATH."""
    return _in_folder_with_code(tmp_path, slurm.env)


def _in_folder_with_code(tmp_path: Path, env: Mapping[str, str]) -> CommandLine:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "count.py").write_text(PROGRAM)
    line = CommandLine(folder, starts=True)
    line.home = tmp_path / "laptop"
    line.env |= {**env, "TORCHYARD_HOME": str(line.home)}
    line.env.pop("TORCHYARD_TEMPLATE_OWNER", None)
    return line
