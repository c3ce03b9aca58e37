"""Commands in a folder of another user: its files are read as data, and never run."""

import ast
import asyncio
import json
import os
from pathlib import Path

import pytest

from torchyard.cli.main import main
from torchyard.client.location import HERE
from torchyard.interpreter import own_environment, own_python
from torchyard.ui.content import Reader, Topic

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
        "client/start.py",  # named in a message
        "client/trainers.py",  # a workload of one's own, by its author's wish
        "client/requirements/resolve.py",  # named to uv, which asks it with -I
        "client/hosts/probe.py",  # sent to a host: its own interpreter, as an answer
        # On hosts: with -P, the supervisor with -I -S.
        *(f"client/hosts/{name}.py" for name in ("preflight", "reach", "setup")),
        *(f"cli/hosted/{name}.py" for name in ("allocation", "runs")),
    }
    package = ROOT / "operator/torchyard"
    named = {
        str(file.relative_to(package))
        for file in package.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "executable"
    }
    assert named <= allowed


RECORD = {
    "apiVersion": "torchyard.dev/v1alpha1",
    "kind": "TrainingJob",
    "metadata": {"name": "x", "uid": "u", "creationTimestamp": "2026-11-21T06:55:50Z"},
    "spec": {"trainer": {"name": "cvrp"}},
}
POD = "pods/x-0-0"
FILES = (
    "job.yaml", "status.json", "events.jsonl", "lock", "checkpoints/metrics.jsonl", "checkpoints/environment.json",
    f"{POD}/pod.json", f"{POD}/process.json", f"{POD}/logs/rank-0.log", f"{POD}/run/profile.json",
)  # fmt: skip
IN_PLACE = {
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": Path.mkdir,
    "a link to itself": lambda path: path.symlink_to(path),
    "a deep object": lambda path: path.write_bytes(b'{"a":' * 200_000),
    "a deep list": lambda path: path.write_bytes(b"[" * 200_000),
    "no text": lambda path: path.write_bytes(b"\xff\x00" * 1000),
    "a huge hole": lambda path: path.write_bytes(b"") or os.truncate(path, 2**40),
    "another form": lambda path: path.write_text('{"metadata": [1], "status": 7, "spec": null}\n[]\n1e999\n'),
    "escapes": lambda path: path.write_text("\x1b]0;owned\x07\x1b[2J\u202e\n" * 3),
}
COMMANDS = ("ps", "status x", "explain x", "logs x --tail 5", "events x", "diff x y", "fetch x", "stacks x", "sweep ls")


@pytest.mark.parametrize("kind", IN_PLACE)
@pytest.mark.parametrize("file", FILES)
def test_no_file_of_a_run_makes_a_command_hang_or_fail_without_a_sentence(tmp_path, monkeypatch, capsys, file, kind):
    if (file, kind) == (f"{POD}/logs/rank-0.log", "a huge hole"):
        return  # a log of that size is printed to its end
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path))
    for name in ("x", "y"):
        folder = tmp_path / "runs" / name
        for below in (f"{POD}/logs", f"{POD}/run", "checkpoints"):
            (folder / below).mkdir(parents=True)
        metadata = {**RECORD["metadata"], "name": name}
        (folder / "job.yaml").write_text(json.dumps({**RECORD, "metadata": metadata}))
        status = {"metadata": {"uid": "u"}, "status": {"state": "Succeeded", "metrics": {"cost": 1.5}}}
        (folder / "status.json").write_text(json.dumps(status))
    victim = tmp_path / "runs/x" / file
    victim.unlink(missing_ok=True)
    IN_PLACE[kind](victim)
    for words in COMMANDS:
        main(words.split())
        said = capsys.readouterr()
        assert "internal error" not in said.err, words
        assert not {"\x1b", "\u202e"} & set(said.out + said.err), words
    main(["ps"])
    assert "y " in capsys.readouterr().out, "one damaged run hides no other"


NAMES = (b"A B", b"x\ny  Running", b"\x1b[31mred", b"\xff\xfe", "\u202elive".encode(), b"--help")


def test_a_folder_that_no_command_can_name_is_one_line_of_a_list(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path))
    for name in (b"x", *NAMES):
        folder = tmp_path / "runs" / os.fsdecode(name)
        folder.mkdir(parents=True)
        (folder / "job.yaml").write_text(json.dumps(RECORD))
    assert main(["ps"]) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == len(said.err.splitlines()) + 2 == len(NAMES) + 2
    assert said.err.count("has no valid name of a run; rename it") == len(NAMES)
    rows = json.loads(asyncio.run(Reader({"here": HERE}).read(Topic("jobs", "here"))).data)["jobs"]
    assert [row["state"] for row in rows].count("Unreadable") == len(NAMES)


def test_the_file_of_a_sweep_cannot_lead_its_deletion_elsewhere(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    folder, kept = tmp_path / "home/sweeps/x", tmp_path / "kept"
    folder.mkdir(parents=True)
    kept.mkdir()
    spec = {
        "objective": {"metric": "loss", "goal": "minimize"},
        "parameters": [{"path": "env.X", "choice": ["1"]}],
        "jobTemplate": {"spec": {"script": "1"}},
    }
    metadata = {"name": str(kept), "uid": "u"}
    document = {"apiVersion": "torchyard.dev/v1alpha1", "kind": "TrainingSweep", "metadata": metadata, "spec": spec}
    (folder / "sweep.yaml").write_text(json.dumps(document))
    assert main(["sweep", "rm", "x"]) == 0, capsys.readouterr().err
    assert (kept.exists(), folder.exists()) == (True, False)
