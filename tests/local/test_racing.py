"""Several terminals at once: whatever they do to a run of one name, there is one run, and no terminal loses its own."""

import json
import os
import subprocess
import sys

import pytest

from torchyard.api.resource import read_job
from torchyard.local import run
from torchyard.local.run import RunFolder, run_folder, take_lock
from torchyard.local.runs import control, create_run, discard_run, list_runs

TERMINALS = 4
ROUNDS = 12

TERMINAL = """
import json, sys
from pathlib import Path
from torchyard.api.resource import read_job
from torchyard.local.run import run_folder
from torchyard.local.runs import RunBusyError, create_run

job = read_job({"metadata": {"name": "any"}, "spec": {"script": "pass"}})
print(json.dumps("here"), flush=True)
for line in sys.stdin:
    try:
        answer = create_run(run_folder(line.strip()), job, Path("/")).metadata.uid
    except RunBusyError as error:
        answer = None
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def terminals(home):
    """Ask every terminal to run the same name at the same moment; the uid that each was given."""
    processes = [
        subprocess.Popen([sys.executable, "-c", TERMINAL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(TERMINALS)
    ]

    def answers():
        return [json.loads(process.stdout.readline()) for process in processes]

    def ask(name):
        for process in processes:
            process.stdin.write(f"{name}\n")
            process.stdin.flush()
        return answers()

    assert answers() == ["here"] * TERMINALS
    yield ask
    for process in processes:
        process.communicate()
        assert process.returncode == 0


def test_the_first_run_of_a_name_is_made_once(terminals):
    for number in range(ROUNDS):
        name = f"demo-{number}"
        uids = terminals(name)
        assert {uid for uid in uids if uid} == {run.read_run(run_folder(name)).metadata.uid}


def test_a_finished_run_starts_over_once(terminals):
    folder = run_folder("demo")
    (before,) = {uid for uid in terminals("demo") if uid}
    for _ in range(ROUNDS):
        folder.status_file.write_text(json.dumps({"metadata": {"uid": before}, "status": {"state": "Succeeded"}}))
        after = {uid for uid in terminals("demo") if uid}
        assert after == {run.read_run(folder).metadata.uid}
        assert before not in after
        (before,) = after


def made(folder):
    return create_run(folder, read_job({"metadata": {"name": "demo"}, "spec": {"script": "pass"}}), folder.home)


def test_a_lock_that_was_moved_away_with_its_folder_locks_nothing(folder):
    made(folder)
    lock = take_lock(folder.lock_file)
    folder.path.rename(folder.path.with_name("elsewhere"))
    made(folder)
    with control(folder):
        assert take_lock(folder.lock_file) is None
        assert take_lock(RunFolder(folder.path.with_name("elsewhere")).lock_file) is None
    os.close(lock)


def test_removing_a_run_does_not_remove_its_successor(folder):
    first = made(folder)
    folder.path.rename(folder.path.with_name("elsewhere"))
    second = made(folder)
    discard_run(folder, first.metadata.uid)
    assert run.read_run(folder).metadata.uid == second.metadata.uid
    discard_run(folder, second.metadata.uid)
    assert run.read_run(folder) is None
    assert [each.name for each in list_runs()] == ["elsewhere"]


def test_editing_a_run_that_is_gone_leaves_nothing_behind(folder):
    with pytest.raises(run.NoRunError, match="no run `demo`"):
        run.edit_job(folder, lambda job: job)
    assert not folder.path.exists()
