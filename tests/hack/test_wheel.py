"""The wheel works without a checkout: what its commands read is in it, once, and nothing else."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from tests.support.waiting import DEADLINE

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The files of the wheel, unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    argv = [sys.executable, "-m", "uv", "build", "--wheel", "--quiet", "--no-build-isolation", "--out-dir", folder]
    subprocess.run(argv, cwd=ROOT, check=True, timeout=DEADLINE, capture_output=True)
    (file,) = folder.glob("*.whl")
    zipfile.ZipFile(file).extractall(folder / "unpacked")
    return folder / "unpacked"


def run(wheel, folder, *words):
    """What a Python that has the wheel and its dependencies, and no checkout, prints."""
    environment = {"PATH": os.defpath, "HOME": str(folder), "PYTHONPATH": str(wheel)}
    argv = [sys.executable, *words]
    done = subprocess.run(
        argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_chart_examples_and_plain_manifests_are_those_of_the_repository(wheel):
    tracked = subprocess.run(
        ["git", "ls-files", "--", "charts/torchyard", "examples", "charts/plain.yaml"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    names = {"charts/torchyard/": "chart/", "examples/": "examples/", "charts/plain.yaml": "plain.yaml"}
    expected = {
        file.replace(source, name): (ROOT / file).read_bytes()
        for source, name in names.items()
        for file in tracked
        if file.startswith(source) and not file.endswith(".gitignore")
    }
    shipped = wheel / "torchyard/share"
    files = {str(path.relative_to(shipped)): path.read_bytes() for path in shipped.rglob("*") if path.is_file()}
    assert files == expected


def test_commands_find_their_files_in_the_wheel(wheel, tmp_path):
    main = ("-m", "torchyard.cli.main")
    where = run(wheel, tmp_path, "-c", "from torchyard.shipped import chart; print(chart())").strip()
    assert where == str(wheel / "torchyard/share/chart")
    kinds = [each["kind"] for each in yaml.safe_load_all(run(wheel, tmp_path, *main, "install", "--dry-run"))]
    assert {"CustomResourceDefinition", "Deployment", "ValidatingAdmissionPolicy"} <= {*kinds}
    run(wheel, tmp_path, *main, "init", "--example", "cvrp")
    assert run(wheel, tmp_path, *main, "validate", "cvrp.yaml", "-o", "json").startswith('{\n  "valid": true')
    run(wheel, tmp_path, "-m", "torchyard_agent.build", "agent.pyz")
    assert run(wheel, tmp_path, "-c", "import sys; sys.path.insert(0, 'agent.pyz'); import torchyard_agent.agent") == ""


def test_kubectl_and_the_shell_find_the_programs(wheel):
    (entries,) = wheel.glob("*.dist-info/entry_points.txt")
    assert [line.partition(" ")[0] for line in entries.read_text().splitlines()[1:] if line] == [
        "kubectl-torchyard",
        "kubectl_complete-torchyard",
        "torchyard",
    ]
