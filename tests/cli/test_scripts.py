"""`run` and `submit` of a script, a module or a command, with options and without a job file."""

import json
import sys

import pytest
import yaml
from tests.cli.conftest import CommandLine
from tests.support.cli.recorded import RUNNING

from torchyard.api.names import derived_name
from torchyard.api.resource import status_document
from torchyard.api.spec import MAX_SCRIPT_BYTES
from torchyard.api.validation.validate import validate_file
from torchyard.cli.commands.job_options import options_of, requested
from torchyard.cli.main import parser_of
from torchyard.cli.output import say
from torchyard.client import start as start_module
from torchyard.client.errors import TorchYardError
from torchyard.client.start import RequestedJob, require_torch, start
from torchyard.local import environment
from torchyard.local.run import read_run


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a script, which is the current one."""
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("import os\nprint('hello')\n")
    monkeypatch.chdir(folder)
    return folder


def asked(command: str, *words: str) -> RequestedJob:
    """The job of a command line."""
    values = vars(parser_of(command).parse_args(words))
    return requested(options_of(values), "cluster" if command == "submit" else "local", values["name"])


@pytest.mark.parametrize(
    ("words", "name", "fields"),
    [
        (["train.py"], "train", {"command": ["torchrun", "train.py"]}),
        (
            ["train.py", "--nodes", "2", "--procs-per-node", "4", "--gpus-per-node", "4"],
            "train",
            {"command": ["torchrun", "train.py"], "nodes": 2, "procs_per_node": 4, "gpus_per_node": 4},
        ),
        # As people who know torchrun write it, and options of the program that torchrun would take for its own.
        (
            ["--nnodes=2", "--nproc-per-node=2", "train.py", "--", "--n", "5", "--", "x"],
            "train",
            {
                "command": ["torchrun", "--", "train.py"],
                "args": ["--n", "5", "--", "x"],
                "nodes": 2,
                "procs_per_node": 2,
            },
        ),
        (["-m", "pkg.train"], "pkg-train", {"command": ["torchrun", "-m", "pkg.train"]}),
        (
            ["-m", "pkg.train", "--name", "mine", "--", "--lr", "1"],
            "mine",
            {"command": ["torchrun", "-m", "--", "pkg.train"], "args": ["--lr", "1"]},
        ),
        (["--nodes", "2", "--", "bash", "-c", "echo $HOME"], "bash", {"command": ["bash", "-c", "echo $HOME"]}),
        (["--", "torchrun", "--nproc-per-node=2", "My_Train.py"], "my-train", {}),
        (["train.py", "--set", "nodes=3", "--set", "preload=[numpy]"], "train", {"nodes": 3, "preload": ["numpy"]}),
    ],
)
def test_a_command_line_means_this_job(here, words, name, fields):
    job = asked("run", *words).job
    assert job.metadata.name == name
    assert {field: getattr(job.spec, field) for field in fields} == fields


def test_variables_are_given_or_taken_from_here(here, monkeypatch):
    monkeypatch.setenv("FROM_HERE", "1")
    job = asked("run", "train.py", "--env", "A=b=c", "--env", "FROM_HERE", "--env", "A=d").job
    assert [(each.name, each.value) for each in job.spec.env] == [("A", "d"), ("FROM_HERE", "1")]


def test_the_options_change_a_job_file_too(here):
    (here / "job.yaml").write_text(
        "apiVersion: torchyard.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: job}\n"
        "spec: {script: pass, env: [{name: A, value: '1'}, {name: B, value: '2'}]}\n"
    )
    job = asked("run", "job.yaml", "--nodes", "2", "--procs-per-node", "2", "--env", "A=x", "--env", "C=3").job
    assert (job.spec.nodes, job.spec.procs_per_node) == (2, 2)
    assert [(each.name, each.value) for each in job.spec.env] == [("A", "x"), ("B", "2"), ("C", "3")]


@pytest.mark.parametrize(
    ("command", "words", "parts"),
    [
        ("run", ["train.py", "--lr", "1"], ["come after `--`", "torchyard run train.py -- --lr"]),
        ("run", [], ["neither FILE nor -m MODULE", "torchyard run train.py"]),
        ("run", ["train.py", "-m", "x"], ["two programs"]),
        (
            "run",
            ["--nodes", "2", "python", "train.py", "--lr", "1"],
            [
                "python is a program",
                "run --nodes 2 train.py -- --lr 1`",
                "run --nodes 2 -- python train.py --lr 1`",
            ],
        ),
        (
            "submit",
            ["torchrun", "--nproc-per-node", "2", "train.py"],
            ["submit -- torchrun --nproc-per-node 2 train.py"],
        ),
        ("run", ["python", "-m", "pkg"], ["`torchyard run -m pkg` starts a module"]),
        ("run", ["/opt/x/python3.12", "train.py"], ["`torchyard run -- /opt/x/python3.12 train.py` as it is"]),
        ("run", ["poetry", "run", "python", "a.py"], ["`torchyard run -- poetry run python a.py` starts it"]),
        ("run", ["bash"], ["`torchyard run -- bash` starts it"]),
        ("run", ["-m", "train.py"], ["-m takes the name of a module", "`torchyard run train.py`"]),
        ("run", ["--", "train.py", "--lr", "1"], ["`torchyard run train.py -- --lr 1` starts it with torchrun"]),
        ("run", ["missing.py"], ["missing.py", "no such file"]),
        ("run", ["train.sh"], ["torchyard run -- bash train.sh"]),
        ("run", ["job.yaml", "--", "--lr", "1"], ["takes no arguments after `--`", "spec.args"]),
        ("run", ["train.py", "--nodes", "0"], ["--nodes", "'0'"]),
        ("run", ["train.py", "--env", "NOT_SET_HERE"], ["NOT_SET_HERE is not set in this environment"]),
        ("run", ["train.py", "--env", "RANK=1"], ["train.py is invalid"]),
        ("submit", ["-m", "pkg.train"], ["must be in the image", "--image IMAGE"]),
        ("submit", ["--", "torchrun", "train.py"], ["must be in the image"]),
        ("submit", ["missing.py"], ["missing.py cannot be read"]),
    ],
)
def test_a_wrong_command_line_is_refused_with_its_fix(here, command, words, parts):
    with pytest.raises(TorchYardError) as refusal:
        asked(command, *words)
    assert all(part in f"{refusal.value.sentence}; {refusal.value.fix}" for part in parts), refusal.value.fix


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("train", "train"),
        ("My_Train", "my-train"),
        ("pkg.cli.Train", "pkg-cli-train"),
        ("2d", "job-2d"),
        ("___", "job"),
        ("ünï", "n"),
        ("x" * 90, "x" * 52),
    ],
)
def test_a_name_comes_from_the_program(program, name):
    assert derived_name(program) == name


def test_a_script_travels_inside_its_job(here):
    job = asked("submit", "train.py", "--nodes", "2", "--image", "me/torch:1", "--", "--lr", "1").job
    assert job.spec.script == (here / "train.py").read_text()
    assert (job.spec.args, job.spec.image, job.spec.command) == (["--lr", "1"], "me/torch:1", [])


def test_code_of_the_image_is_named_as_it_is(here):
    assert asked("submit", "--image", "i", "-m", "pkg.train").job.spec.command == ["torchrun", "-m", "pkg.train"]
    job = asked("submit", "--image", "i", "--", "python", "/app/run.py").job
    assert (job.metadata.name, job.spec.command) == ("run", ["python", "/app/run.py"])


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        (
            "import os, model\n",
            ["imports model from its folder", "torchyard submit --image IMAGE -- torchrun train.py"],
        ),
        ("def f():\n    from lib.nets import Net\n", ["imports lib"]),
        ("x" * (MAX_SCRIPT_BYTES + 1), ["60 KiB", "build an image"]),
        ("\n", ["is not Python source"]),
    ],
    ids=["module", "package", "size", "empty"],
)
def test_what_cannot_travel_is_refused_with_the_command_that_works(here, source, parts):
    (here / "model.py").touch()
    (here / "lib").mkdir()
    (here / "lib" / "nets.py").touch()
    (here / "data").mkdir()
    (here / "train.py").write_text(source)
    with pytest.raises(TorchYardError) as refusal:
        asked("submit", "train.py")
    assert all(part in f"{refusal.value.sentence}; {refusal.value.fix}" for part in parts), refusal.value.fix


def test_an_image_may_have_what_lies_beside_the_script(here, capsys):
    (here / "model.py").touch()
    (here / "train.py").write_text("import model, data, json\n")
    asked("submit", "train.py", "--image", "me/torch:1")
    assert "me/torch:1 must have it installed" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "place"), [("run", "job.yaml"), ("run", "jobs/job.yaml"), ("submit", "job.yaml")])
def test_a_saved_job_file_means_the_same(torchyard: CommandLine, command, place):
    (torchyard.folder / "jobs").mkdir()
    (torchyard.folder / "train.py").write_text("import sys\nprint(sys.argv)\n")
    words = ["train.py", "--nodes", "2", "--env", "A=1"]
    done = torchyard(command, *words, "--save", place, "--", "--lr", "1e-3", "a b")
    assert (done.returncode, f"torchyard run {place}" in done.stderr) == (0, True), done.stderr
    file = torchyard.folder / place
    (job,) = validate_file(file).jobs
    assert job.spec.nodes == 2
    assert job.spec.args == ["--lr", "1e-3", "a b"]
    if command == "submit":
        assert job.spec.script == (torchyard.folder / "train.py").read_text()
        assert "script: |" in file.read_text()
    else:
        assert (file.parent / (job.spec.working_dir or "")).resolve() == torchyard.folder.resolve()
    assert not (torchyard.home / "runs").exists(), "nothing was started"
    again = torchyard(command, *words, "--save", place)
    assert (again.returncode, "exists" in again.stderr) == (64, True)


def test_scripts_of_two_folders_do_not_share_a_run(here, tmp_path, monkeypatch, capsys):
    first = start(asked("run", "train.py"), notice=say)
    assert start(asked("run", "train.py"), notice=say).name == "train", "the same again goes on"
    other = tmp_path / "other"
    other.mkdir()
    (other / "train.py").write_text("print('another program')\n")
    monkeypatch.chdir(other)
    second = start(asked("run", "train.py"), notice=say)
    assert (first.name, second.name) == ("train", "train-2")
    assert "a script of another folder has the name 'train'" in capsys.readouterr().err
    assert start(asked("run", "train.py"), notice=say).name == "train-2"
    names = iter([first])  # taken by another process after it was seen to be free
    free = start_module._free_folder
    monkeypatch.setattr(start_module, "_free_folder", lambda *words: next(names, None) or free(*words))
    assert start(asked("run", "train.py"), notice=say).name == "train-2"
    with pytest.raises(TorchYardError, match="belongs to"):
        start(asked("run", "train.py", "--name", "train"), "train", notice=say)
    kept = read_run(first)
    assert kept is not None
    assert kept.metadata.annotations["torchyard.dev/source-folder"] == str(here)


def test_an_unfinished_run_is_announced(torchyard: CommandLine, here, monkeypatch, capsys):
    monkeypatch.setenv("TORCHYARD_HOME", str(torchyard.home))
    folder = start(asked("run", "train.py"), notice=say)
    document = {"metadata": {"uid": read_run(folder).metadata.uid}, "status": status_document(RUNNING.status)}
    (folder.path / "status.json").write_text(json.dumps(document))
    capsys.readouterr()
    start(asked("run", "train.py"), notice=say)
    assert "continues the unfinished run 'train'; `torchyard rm train` deletes it" in capsys.readouterr().err


def test_the_memory_of_a_script_is_not_forecast(torchyard: CommandLine):
    (torchyard.folder / "train.py").touch()
    done = torchyard("plan", "train.py")
    assert done.returncode == 64
    assert "train.py is a script, and only the step of a spec.trainer can be forecast; name a" in done.stderr


def test_debug_behind_the_dashes_is_the_programs(torchyard: CommandLine):
    (torchyard.folder / "train.py").touch()
    done = torchyard("run", "train.py", "--save", "job.yaml", "--", "--debug", "--help")
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load((torchyard.folder / "job.yaml").read_text())["spec"]["args"] == ["--debug", "--help"]


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["train.py", "--", "--lr", "a b"], "starts without torchrun: `torchyard run -- python train.py --lr 'a b'`"),
        (["cvrp.yaml"], "`pip install 'torchyard[trainers]'`"),
        (["-m", "pkg"], "`pip install torch` installs it"),
    ],
)
def test_without_torch_the_command_that_helps_this_job_is_named(here, monkeypatch, words, fix):
    (here / "cvrp.yaml").write_text(
        "apiVersion: torchyard.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: a}\nspec: {trainer: {name: cvrp}}\n"
    )
    job = asked("run", *words).job
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setenv("PATH", str(here))
    monkeypatch.setattr(environment, "OWN_PROGRAMS", here)
    with pytest.raises(TorchYardError, match="torchrun needs PyTorch, which is not installed") as refusal:
        require_torch(job)
    assert fix in refusal.value.fix
