"""A run that is going on, seen from other terminals: refused, stopped, edited, removed."""

import asyncio
import os
import sys
import time

import pytest

from torchyard.local import controller as laptop_module
from torchyard.local.controller import run_job
from torchyard.local.runs import RunBusyError, remove_run, suspend_run

pytestmark = pytest.mark.e2e


SLEEP = {"command": [sys.executable, "-c", "import time; time.sleep(600)"], "device": "cpu", "gracePeriod": "1s"}


async def test_a_second_controller_is_refused_and_a_hard_stop_leaves_nothing(laptop):
    laptop.create(**SLEEP)
    laptop.begin()
    await laptop.working()
    with pytest.raises(RunBusyError, match=str(os.getpid())):
        await run_job(laptop.folder)
    laptop.kill.set()
    job = await laptop.ended()
    assert job.status.state == "Suspended"
    assert not laptop.left


async def test_another_terminal_can_stop_a_run(laptop):
    laptop.create(**SLEEP)
    laptop.begin()
    await laptop.working()
    suspend_run(laptop.folder, suspend=True)
    job = await laptop.ended()
    assert job.status.state == "Suspended"
    assert not laptop.left


async def test_another_terminal_can_remove_a_run(laptop):
    laptop.create(**SLEEP)
    laptop.begin()
    await laptop.working()
    await asyncio.to_thread(remove_run, laptop.folder)
    await laptop.ended()
    assert not laptop.left
    assert not laptop.folder.path.exists()


async def test_a_run_without_a_controller_is_removed_with_all_that_still_runs(laptop):
    laptop.create(**SLEEP)
    controller = laptop.controller_process()
    await laptop.working()
    controller.kill()
    controller.wait()
    assert laptop.left
    await asyncio.to_thread(remove_run, laptop.folder)
    assert not laptop.left
    assert not laptop.folder.path.exists()


async def test_a_job_file_that_is_away_for_a_moment_deletes_nothing(laptop, monkeypatch):
    looks = []
    read = laptop_module.read_run
    monkeypatch.setattr(laptop_module, "read_run", lambda folder: looks.append(read(folder)) or looks[-1])
    laptop.create(**SLEEP)
    laptop.begin()
    await laptop.working()
    aside = laptop.folder.job_file.rename(laptop.folder.path / "job.yaml~")
    await laptop.until(lambda: None in looks, what="the controller has looked")
    aside.rename(laptop.folder.job_file)
    suspend_run(laptop.folder, suspend=True)
    job = await laptop.ended()
    assert job.status.state == "Suspended", "it follows the file again"
    assert laptop.folder.path.is_dir()


async def test_an_edit_that_makes_a_job_invalid_is_reported_and_ignored(laptop):
    laptop.create(**SLEEP)
    laptop.begin()
    await laptop.working()
    good = laptop.folder.job_file.read_bytes()
    laptop.folder.job_file.write_bytes(b"spec: [")
    await laptop.until(lambda: "InvalidSpec" in {event.reason for event in laptop.events})
    laptop.folder.job_file.write_bytes(good)
    assert not laptop.task.done()


async def test_gpus_that_this_machine_does_not_have_are_named_in_the_status(laptop):
    laptop.create(**SLEEP | {"gpusPerNode": 64})
    laptop.begin()
    await laptop.until(lambda: "needs 64 GPUs" in laptop.status.message, what=str(time.time()))
    assert laptop.status.state == "Pending"
    assert laptop.status.reason == "InsufficientGPU"
    laptop.stop.set()
    job = await laptop.ended()
    assert job.status.state == "Suspended"
