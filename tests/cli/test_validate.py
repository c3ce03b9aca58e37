"""`torchyard validate`: also what a trainer refuses of parameters that are right one by one."""

import json

import pytest

from torchyard.cli.main import main
from torchyard.client import trainers

JOB = """
apiVersion: torchyard.dev/v1alpha1
kind: TrainingJob
metadata: {{name: job}}
spec:
  trainer: {{name: {name}, params: {params}}}
"""


@pytest.fixture
def written(tmp_path):
    def write(name, **params):
        file = tmp_path / "job.yaml"
        file.write_text(JOB.format(name=name, params=json.dumps(params)))
        return str(file)

    return write


@pytest.mark.parametrize(
    ("name", "params", "said"),
    [
        ("cvrp", {"embedding": 30}, "embedding: 30 is not a multiple of heads"),
        ("cvrp", {"samples": 1}, "samples: 1, but baseline shared compares at least 2"),
        ("vecrl", {"environment": "cartpole", "model": "cnn"}, "model: cnn sees a grid"),
        ("vecrl", {"environment": "cartpole", "grid": 8}, "grid: is of environment snake"),
        ("vecrl", {"environment": "snake", "grid": 5, "view": 13}, "view: 13 is wider than grid (5)"),
        ("vecrl", {"horizon": 15}, "horizon: 15 is not a multiple of minibatches"),
    ],
)
def test_fields_that_contradict_each_other_are_named_before_anything_starts(written, capsys, name, params, said):
    file = written(name, **params)
    assert main(["validate", file, "-o", "json"]) == 64
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["file"] == file
    assert f"{problem['path']}: {problem['what']}".startswith(f"spec.trainer.params.{said}")
    assert problem["fix"]
    assert main(["run", file]) == 64
    assert f"spec.trainer.params.{said}" in capsys.readouterr().err


@pytest.mark.usefixtures("warm_trainers")
@pytest.mark.parametrize(
    ("params", "sets", "said"),
    [
        ({}, ["parallelism.cpuOffload=true", "parallelism.precision=fp16"], "parallelism.cpuOffload: true is incomp"),
        ({"preset": "cvrp50"}, ["export.formats=[web]"], "export.formats: web: the page would have "),
        ({"preset": "cvrp50", "instances": "/on/another/machine"}, ["export.formats=[web]"], ""),
        ({}, ["export.formats=[web, onnx]"], ""),
    ],
)
def test_what_the_first_round_would_refuse_without_looking_at_its_machine_is_named(written, capsys, params, sets, said):
    words = ["validate", written("cvrp", **params), *(word for each in sets for word in ("--set", each)), "-o", "json"]
    assert main(words) == (64 if said else 0)
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert len(problems) == bool(said)
    assert all(f"{each['path']}: {each['what']}".startswith(f"spec.{said}") for each in problems)


def test_without_trainers_on_this_machine_the_rest_is_judged_all_the_same(written, capsys, monkeypatch):
    monkeypatch.setattr(trainers, "_PACKAGE", "trainers_that_are_not_installed")
    assert main(["validate", written("cvrp", embedding=30)]) == 0
    assert main(["validate", written("cvrp", embedings=30)]) == 64
    assert "did you mean" in capsys.readouterr().err


def test_a_script_is_checked_as_run_starts_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("pass")
    assert main(["validate", "train.py", "--nodes", "2", "-o", "json", "--", "--lr", "1"]) == 0
    (job,) = json.loads(capsys.readouterr().out)["jobs"]
    assert (job["spec"]["nodes"], job["spec"]["args"]) == (2, ["--lr", "1"])
    assert main(["validate", "-m", "package.train"]) == 0
    assert "-m package.train: valid (package-train)" in capsys.readouterr().err
    for words, said in {
        ("train.py", "--env", "RANK=3"): "'RANK' is reserved",
        ("gone.py",): "there is no such file",
        ("train.py", "job.yaml"): "train.py is a script among other files",
        ("job.yaml", "--", "--lr", "1"): "job files and a program are given",
        ("job.yaml", "--env", "A=1"): "--env belongs to a program",
        (): "neither FILE nor -m MODULE nor a command after -- is given",
    }.items():
        assert main(["validate", *words]) == 64
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train.py", "--nodes", "3000"], "spec.nodes: 3000 is too large"),
        (["train.py", "--set", "nodez=3"], "spec.nodez: unknown field"),
        (["-m", "package.train", "--set", "health.stall=never"], "spec.health.stall: 'never'"),
        (["gone.py"], ": there is no such file"),
    ],
)
def test_problems_of_a_script_are_json_where_json_is_asked_for(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("pass")
    assert main(["validate", *words, "-o", "json"]) == 64
    found = capsys.readouterr()
    document = json.loads(found.out)
    (problem,) = document["problems"]
    assert (document["valid"], document["jobs"]) == (False, [])
    assert f"{problem['path']}: {problem['what']}".startswith(said)
    assert problem["fix"]
    assert problem["line"] == 0, "the job has no file"
    assert found.err == ""
