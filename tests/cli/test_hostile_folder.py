"""Commands in a folder of another user: its files are read as data, and never run."""

import ast
import os
from pathlib import Path

import pytest

from torchyard.interpreter import own_environment, own_python

ROOT = Path(__file__).parents[2]
MODULES = ("json", "typing", "msgspec", "runpy", "re", "os", "site", "sitecustomize", "torch", "torchyard", "hashlib")
PACKAGES = ("torchyard_trainers", "torchyard_agent", "torchyard")
JOB = """\
apiVersion: torchyard.dev/v1alpha1
kind: TrainingJob
metadata: {name: x}
spec: {trainer: {name: cvrp}}
"""


@pytest.fixture
def hostile(torchyard):
    """A folder with modules that leave a mark when they are imported."""
    mark = f"open({str(torchyard.folder / 'ran')!r}, 'a').write(__file__ + '\\n')\n"
    for name in MODULES:
        (torchyard.folder / f"{name}.py").write_text(mark)
    for name in PACKAGES:
        (torchyard.folder / name).mkdir()
        for file in ("__init__.py", "__main__.py", "build.py"):
            (torchyard.folder / name / file).write_text(mark)
    (torchyard.folder / "job.yaml").write_text(JOB)
    torchyard.starts = True
    return torchyard


@pytest.mark.parametrize(
    "words",
    [("validate", "job.yaml"), ("plan", "job.yaml"), ("gpus",), ("stacks", "x"), ("doctor", "-n", "x"), ("ps",)],
)
def test_no_command_runs_what_lies_in_the_folder(hostile, words):
    done = hostile(*words)
    assert "Traceback" not in done.stderr
    assert not (hostile.folder / "ran").exists(), (hostile.folder / "ran").read_text()
    if words[0] == "validate":
        assert done.returncode == 0, done.stderr


def test_an_empty_or_relative_entry_of_the_path_is_left_out():
    paths = os.pathsep.join(["", "/abs", ".", "rel", "/other", ""])
    assert own_environment({"PYTHONPATH": paths, "A": "b"})["PYTHONPATH"] == "/abs:/other"
    assert own_environment({"PYTHONPATH": ":", "A": "b"}, C="d") == {"A": "b", "C": "d"}


def test_every_python_that_we_start_ourselves_is_started_that_way():
    """In the operator's package the interpreter is named where it cannot import from the current directory."""
    assert own_python("-m", "x")[1:] == ["-P", "-m", "x"]
    allowed = {
        "interpreter.py",
        "local/pod.py",  # the keeper: -I -S
        "local/pods.py",  # the agent by its path, in the folder of the program that it runs
        "local/template.py",  # the same, for several pods
        "local/environment.py",  # the PATH of that program
        "client/trainers.py",  # a workload of one's own, by its author's wish
    }
    package = ROOT / "operator/torchyard"
    named = {
        str(file.relative_to(package))
        for file in package.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "executable"
    }
    assert named <= allowed
