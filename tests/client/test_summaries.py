"""The list of runs: read from one cache, and always what the files say."""

import json
import os
import time

import msgspec
import pytest

from torchyard.api.resource import read_job
from torchyard.api.status import Progress, State, TrainingJobStatus
from torchyard.api.values import Time
from torchyard.client import summaries
from torchyard.client.backend import Unreadable
from torchyard.client.local import LocalBackend
from torchyard.client.summaries import summary_of
from torchyard.local.run import run_folder, take_lock, write_status_file
from torchyard.local.runs import create_run


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path))
    monkeypatch.setattr(summaries, "SMALL", 0)
    for number in range(3):
        run(tmp_path, f"run-{number}", State.SUCCEEDED, step=number)
    return tmp_path


def run(home, name, state, *, step=1, spec=None, **status):
    job = read_job({"metadata": {"name": name}, "spec": {"script": "pass", **(spec or {})}})
    job = create_run(run_folder(name, home), job, home)
    new = TrainingJobStatus(state=state, progress=Progress(step=step), **status)
    write_status_file(run_folder(name, home), msgspec.structs.replace(job, status=new))


async def listed():
    return {
        each.name: each.sentence if isinstance(each, Unreadable) else each for each in await LocalBackend().summaries()
    }


async def test_the_cache_is_what_the_files_say(home):
    cold, warm = await listed(), await listed()
    assert (home / "summaries.json").exists()
    expected = {each.job.metadata.name: summary_of(each.job, controlled=False) for each in await LocalBackend().jobs()}
    assert cold == warm == expected


async def test_a_change_of_one_run_is_seen_at_once(home):
    await listed()
    run(home, "run-9", State.RUNNING, step=7)
    found = await listed()
    assert found["run-9"].step == "7"
    assert found["run-9"].word == "Interrupted"
    assert found["run-0"].word == "Succeeded"
    lock = take_lock(run_folder("run-9", home).lock_file)
    assert (await listed())["run-9"].word == "Running"
    os.close(lock)
    assert (await listed())["run-9"].word == "Interrupted"


async def test_a_run_whose_time_has_passed_is_deleted(home):
    ended = Time.of(time.time() - 100)
    run(home, "old", State.SUCCEEDED, spec={"ttlAfterFinished": "1h"}, completion_time=ended)
    assert "old" in await listed()
    cache = json.loads((home / "summaries.json").read_text())
    cache["entries"]["old"]["summary"]["expires"] = time.time() - 1
    (home / "summaries.json").write_text(json.dumps(cache))
    assert "old" in await listed(), "the files decide, not the cache"
    run(home, "older", State.SUCCEEDED, spec={"ttlAfterFinished": "10s"}, completion_time=ended)
    assert "older" not in await listed()


@pytest.mark.parametrize("text", ["", "[]", '{"version": "0", "entries": {}}', '{"entries": {"run-0": 1}}', "[" * 9000])
async def test_a_damaged_cache_is_read_from_the_files_again(home, text):
    expected = await listed()
    (home / "summaries.json").write_text(text)
    assert await listed() == expected
    (home / "summaries.json").unlink(missing_ok=True)
    os.mkfifo(home / "summaries.json")
    assert await listed() == expected


async def test_a_damaged_run_is_named(home):
    run_folder("run-2", home).job_file.write_text("{")
    found = await listed()
    assert "run-2" in found["run-2"]
    assert found["run-1"].word == "Succeeded"
