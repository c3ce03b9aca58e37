"""A job whose packages are not in the environment: installed before its first round, beside a warm PyTorch."""

import json

import pytest
from tests.agent.test_requirements import wheel

pytestmark = pytest.mark.e2e

PROGRAM = (
    "import os, torch, ty_one, ty_two; print(ty_one.answer, os.environ['TORCHYARD_PACKAGES_DIR'] in ty_two.__file__)"
)
JOB = """
apiVersion: torchyard.dev/v1alpha1
kind: TrainingJob
metadata: {name: packages}
spec:
  command: [torchrun, train.py]
  code: {path: project, requirements: requirements.txt, wheels: wheels}
  nodes: 2
"""


def test_packages_are_installed_from_wheels_for_all_pods_and_others_are_refused(torchyard):
    folder = torchyard.folder / "project"
    folder.mkdir()
    wheel(folder / "wheels", "ty_one", ["ty_two"])
    wheel(folder / "wheels", "ty_two")
    (folder / "requirements.txt").write_text("ty_one\n")
    (folder / "train.py").write_text(PROGRAM)
    (torchyard.folder / "job.yaml").write_text(JOB)
    ran = torchyard("run", "job.yaml")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("42 True") == 2
    status = json.loads(torchyard("status", "packages", "-o", "json").stdout)["status"]
    assert (status["state"], status["round"]) == ("Succeeded", 1)

    (folder / "requirements.txt").write_text("ty_one==9\n")
    ran = torchyard("run", "job.yaml", "--name", "absent")
    assert ran.returncode == 64
    assert "spec.code.requirements" in ran.stderr
    assert "ty-one==9" in ran.stderr
