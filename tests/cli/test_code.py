"""`torchyard run --code`: a run works on a copy of the folder as it was when it started."""

import json
import os
import signal

import pytest
from tests.cli.conftest import eventually
from tests.support.waiting import DEADLINE

pytestmark = pytest.mark.e2e

PROGRAM = """
import json, os, pathlib
from lib import model
checkpoints = pathlib.Path(os.environ["TORCHYARD_CHECKPOINT_DIR"])
said = {"value": model.VALUE, "cwd": os.getcwd(), "writable": os.access("train.py", os.W_OK) and os.getuid() != 0}
(checkpoints / f"said-{os.environ.get('RANK', 'plain')}.json").write_text(json.dumps(said))
if model.VALUE == 1:
    pathlib.Path(os.environ["LIVE"], "lib", "model.py").write_text("VALUE = 2\\n")
"""


@pytest.fixture
def project(torchyard):
    (folder := torchyard.folder / "project" / "lib").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "model.py").write_text("VALUE = 1\n")
    (folder.parent / "train.py").write_text(PROGRAM)
    torchyard.env["LIVE"] = str(folder.parent)
    torchyard.folder = folder.parent
    return folder.parent


def said(torchyard, rank=0):
    return json.loads((torchyard.run_folder("train") / "checkpoints" / f"said-{rank}.json").read_text())


def test_a_run_keeps_its_copy_and_the_next_one_sees_an_edit_of_equal_size_and_time(project, torchyard):
    times = (project / "lib/model.py").stat()
    done = torchyard("run", "train.py", "--code", ".", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert "code: 3 files, " in done.stderr
    status, first = json.loads(done.stdout)["status"], said(torchyard)
    assert (first["value"], first["writable"]) == (1, False)
    assert first["cwd"] == str(torchyard.run_folder("train") / "code" / status["code"]["digest"])
    record = json.loads((torchyard.run_folder("train") / "checkpoints" / "environment.json").read_text())
    assert set(record["code"]["files"]) == {"lib/__init__.py", "lib/model.py", "train.py"}
    os.utime(project / "lib/model.py", ns=(times.st_atime_ns, times.st_mtime_ns))
    done = torchyard("run", "--code", ".", "--name", "train", "--", "python", "train.py")
    assert done.returncode == 0, done.stderr
    assert said(torchyard, "plain")["value"] == 2
    assert len(list((torchyard.home / "code").iterdir())) == 2


def test_code_that_cannot_travel_is_refused_before_anything_starts(project, torchyard):
    (project / "leak").symlink_to("/etc/passwd")
    done = torchyard("run", "train.py", "--code", ".")
    assert done.returncode == 64
    assert "leak is a link that leaves the folder" in done.stderr
    assert not torchyard.run_folder("train").exists()


def test_a_run_that_is_watched_continues_with_each_edit_until_it_is_interrupted(project, torchyard):
    (project / "train.py").write_text(
        "import time\nfrom lib import model\nprint('VALUE', model.VALUE, flush=True)\ntime.sleep(900)\n"
    )
    running = torchyard.start("run", "--code", ".", "--name", "train", "--watch", "--", "python", "train.py")
    try:
        eventually(lambda: torchyard.has_logged("train", "VALUE 1"))
        (project / "lib/model.py").write_text("VALUE = 2\n")
        eventually(lambda: torchyard.has_logged("train", "VALUE 2"))
    finally:
        running.send_signal(signal.SIGINT)
        output, errors = running.communicate(timeout=DEADLINE)
    assert running.returncode == 75, errors
    assert output.splitlines() == ["VALUE 1", "VALUE 2"]
    assert "the code was edited: starts again" in errors


def test_a_gang_of_two_that_is_watched_continues_with_each_edit_on_both_nodes(project, torchyard):
    (project / "train.py").write_text(
        "import os, time\nfrom lib import model\n"
        "print('VALUE', model.VALUE, 'of', os.environ['RANK'], flush=True)\ntime.sleep(900)\n"
    )
    running = torchyard.start("run", "train.py", "--code", ".", "--nodes", "2", "--watch")
    try:
        for value in (1, 2, 3):
            (project / "lib/model.py").write_text(f"VALUE = {value}\n")
            for rank in range(2):
                eventually(lambda said=f"VALUE {value} of {rank}": torchyard.has_logged("train", said))
    finally:
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=DEADLINE)
    assert running.returncode == 75, errors
    assert errors.count("the code was edited: starts again") == 2


def test_a_volume_is_a_folder_of_this_machine_or_is_reported(torchyard):
    (data := torchyard.folder / "data").mkdir()
    (data / "a.txt").write_text("of the laptop\n")
    volumes = [
        {"name": "data", "claim": "c", "mountPath": "/data"},
        {"name": "key", "secret": "s", "mountPath": "/key"},
    ]
    spec = {"command": ["cat", "/data/a.txt"], "volumes": volumes}
    job = {"apiVersion": "torchyard.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "cat"}, "spec": spec}
    (torchyard.folder / "job.json").write_text(json.dumps(job))
    done = torchyard("run", "job.json", "--volume", "data=data")
    assert (done.returncode, done.stdout) == (0, "of the laptop\n"), done.stderr
    assert "no folder for the volumes key (Secret s, at /key); --volume key=FOLDER names one" in done.stderr
    for word, sentence in {
        "other=data": "--volume other: spec.volumes has data, key",
        "data=absent": "--volume data=absent is not a folder",
        "data": "data is not NAME=FOLDER",
    }.items():
        done = torchyard("run", "job.json", "--volume", word)
        assert done.returncode == 64
        assert sentence in done.stderr


def test_watching_needs_code(project, torchyard):
    done = torchyard("run", "train.py", "--watch")
    assert (done.returncode, done.stderr) == (64, "torchyard: --watch has no code to watch; add --code FOLDER\n")
