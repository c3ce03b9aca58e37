"""What a user reads of a profile before a job runs: `torchyard validate`, `plan` and `status`."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console
from tests.client.test_cluster_plan import NODES, job, plan

from torchyard.api.profiles.resource import read_profile
from torchyard.api.status import TrainingJobStatus
from torchyard.cli.main import main
from torchyard.cli.views.show import facts
from torchyard.reconcile.profile import apply_profile

RESEARCH = Path(__file__).parents[2] / "examples/profiles/research.yaml"
JOB = """\
apiVersion: torchyard.dev/v1alpha1
kind: TrainingJob
metadata: {{name: job}}
spec: {{profile: research, command: [torchrun, train.py], nodes: {nodes}}}
"""


@pytest.fixture
def written(tmp_path):
    def write(nodes):
        file = tmp_path / "job.yaml"
        file.write_text(JOB.format(nodes=nodes))
        return str(file)

    return write


def test_a_job_is_compared_with_the_file_of_its_profile(written, capsys):
    assert main(["validate", str(RESEARCH), written(4)]) == 0
    assert f"{RESEARCH}: valid (profile research)" in capsys.readouterr().err
    assert main(["validate", str(RESEARCH), written(5)]) == 64
    said = capsys.readouterr().err
    assert "spec.nodes: profile research allows at most 4: change it, or ask the owner of the profile" in said


def test_without_the_file_of_the_profile_the_user_reads_what_was_not_compared(written, capsys):
    file = written(5)
    assert main(["validate", file]) == 0
    said = capsys.readouterr().err
    assert "spec.profile: research is an object of a cluster, so its limits were not checked" in said
    assert f"torchyard plan {file} -n NAMESPACE" in said


def profile(**spec):
    return read_profile({"metadata": {"name": "research", "uid": "p", "generation": 1}, "spec": spec})


def test_a_plan_names_what_a_profile_sets_and_does_not_allow():
    asked = job(nodes=3, gpus=0, profile="research")
    defaults = {"resources": {"cpu": 65}}
    found = plan(
        asked, nodes=NODES, pods=(), profile=apply_profile(asked, profile(defaults=defaults, limits={"nodes": 2}))
    )
    text = str(found)
    assert "profile   research" in text
    assert "sets resources.cpu: 65" in text
    assert "spec.nodes: profile research allows at most 2" in text
    assert "it needs 195 CPU" in text, "what the profile sets counts for the fit"
    assert not found.possible


def test_the_status_shows_the_profile_as_the_job_uses_it():
    asked = job(profile="research")
    pinned = apply_profile(asked, profile(defaults={"image": "registry/a:1"})).pinned
    running = replace(asked, status=TrainingJobStatus(profile=pinned))
    console = Console(width=120)
    with console.capture() as captured:
        console.print(facts(running, True, (), 0.0))
    assert 'profile   research  image "registry/a:1"' in captured.get()
