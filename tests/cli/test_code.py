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


def test_watching_needs_code(project, torchyard):
    done = torchyard("run", "train.py", "--watch")
    assert (done.returncode, done.stderr) == (64, "torchyard: --watch has no code to watch; add --code FOLDER\n")
