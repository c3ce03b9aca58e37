"""What a round runs with is recorded: Python, packages and code, and no value of a variable."""

import json
import os
import re
import sys
from importlib.metadata import distributions, version

import pytest
from tests.support.kubernetes.api_server import until

from torchyard_agent.workers import recording
from torchyard_agent.workers.recording import FILE, Recording, code_of, commit, digest_of


async def test_a_record_is_written_beside_the_checkpoints_with_its_digest(tmp_path, monkeypatch):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path / "code")
    monkeypatch.setenv("HF_TOKEN", "hf_secret_value")
    made = Recording(tmp_path / "checkpoints")
    assert made.digest == ""
    made.start(sys.executable, 3)
    await until(lambda: made.digest)
    text = (tmp_path / "checkpoints" / FILE).read_text()
    record = json.loads(text)
    assert (record["round"], record["digest"]) == (3, made.digest)
    assert record["python"] == ".".join(map(str, sys.version_info[:3]))
    assert record["packages"]["msgspec"]
    assert list(record["code"]["files"]) == ["train.py"]
    assert "hf_secret_value" not in text
    assert list((tmp_path / "checkpoints").iterdir()) == [tmp_path / "checkpoints" / FILE]


@pytest.mark.parametrize("program", ["exit 1", "echo not JSON", "echo '[1'"])
async def test_a_record_that_cannot_be_written_affects_nothing_else(tmp_path, caplog, program):
    interpreter = tmp_path / "python"
    interpreter.write_text(f"#!/bin/sh\n{program}\n")
    interpreter.chmod(0o755)
    made = Recording(tmp_path / "checkpoints")
    caplog.set_level("INFO")
    made.start(str(interpreter), 1)
    await until(lambda: "the environment of round 1 is not recorded" in caplog.text)
    assert made.digest == ""
    Recording(None).start(str(interpreter), 1)  # a program without a checkpoint folder


def test_packages_are_those_that_importlib_names_and_descriptions_are_not_read(tmp_path, monkeypatch):
    described = "Metadata-Version: 2.1\nname: Some_Package.x\nVersion:  1.0 \n\nName: other\nVersion: 2.0\n"
    for folder, text in {"first": described, "second": described.replace("1.0", "3.0")}.items():
        (tmp_path / folder / "some.dist-info").mkdir(parents=True)
        (tmp_path / folder / "some.dist-info" / "METADATA").write_text(text)
    (tmp_path / "first" / "broken-2.dist-info").mkdir()
    installed = recording.packages()
    assert installed == {
        re.sub(r"[-_.]+", "-", name).lower(): version(name)
        for name in dict.fromkeys(each.metadata["Name"] for each in distributions())
    }
    monkeypatch.syspath_prepend(tmp_path / "second")
    monkeypatch.syspath_prepend(tmp_path / "first")
    assert recording.packages() == {**installed, "some-package-x": "1.0"}


def test_the_digest_changes_with_code_packages_and_python_and_with_nothing_else():
    record = {"python": "3.12.1", "packages": {"torch": "2.15"}, "code": {"commit": "a", "files": {"a.py": "1"}}}
    same = [{**record, "machine": {"cpus": 2}}, {**record, "round": 7}]
    other = [{**record, "python": "3.13"}, {**record, "packages": {"torch": "2.16"}}, {**record, "code": None}]
    assert {digest_of(each) for each in same} == {digest_of(record)}
    assert len({digest_of(each) for each in [record, *other]}) == 4


def test_code_is_the_python_files_of_the_folder_within_limits(tmp_path, monkeypatch):
    for name in ("b.py", "a.py", "lib/c.py", ".hidden/d.py", "venv/e.py", "runs/cvrp/pods/p/script.py", "data.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.setenv("TORCHYARD_CHECKPOINT_DIR", str(tmp_path / "runs/cvrp/checkpoints"))
    (tmp_path / "large.py").write_bytes(b"#" * (recording.MAX_FILE_BYTES + 1))
    (tmp_path / "gone.py").symlink_to("nowhere")
    (tmp_path / "endless.py").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "blocks.py")
    assert list(code_of(tmp_path)["files"]) == ["a.py", "b.py", "lib/c.py"]
    monkeypatch.setattr(recording, "MAX_FILES", 2)
    assert list(code_of(tmp_path)["files"]) == ["a.py", "b.py"]
    assert code_of(tmp_path.__class__("/"))["files"] == {}


@pytest.mark.parametrize(
    ("head", "files", "found"),
    [
        ("ref: refs/heads/main", {"refs/heads/main": "a" * 40}, "a" * 40),
        ("ref: refs/heads/main", {"packed-refs": f"# pack\n{'b' * 40} refs/heads/main\n"}, "b" * 40),
        ("c" * 40, {}, "c" * 40),
        ("ref: refs/heads/none", {}, None),
        ("ref: ../../secret", {"../../secret": "password"}, None),
        ("password", {}, None),
        (None, {}, None),
    ],
)
def test_the_commit_is_read_without_git(tmp_path, head, files, found):
    for name, text in {"HEAD": head, **files}.items():
        if text is not None:
            (tmp_path / ".git" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / ".git" / name).write_text(f"{text}\n")
    (tmp_path / "below").mkdir()
    assert commit(tmp_path / "below") == found


@pytest.mark.e2e
def test_a_round_that_ends_at_once_is_recorded_and_its_digest_reported(pod, tmp_path):
    one = pod("true", TORCHYARD_CHECKPOINT_DIR=str(tmp_path / "checkpoints"))
    one.ready()
    one.run()
    assert one.ended()["code"] == 0
    record = json.loads((tmp_path / "checkpoints" / FILE).read_text())
    assert one.intake.state(one.name)["environment"] == record["digest"]
