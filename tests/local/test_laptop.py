"""`run_job`: one TrainingJob through all of the house, with real agents, launchers and workers, and real kills."""

import asyncio
import json
import os
import signal
import threading

import msgspec
import pytest
from tests.support.shared_templates import SHARED, without_pytest
from tests.support.trainers.gangs import WORKER_MODULES

from torchyard.local import record
from torchyard.local.process import carrying
from torchyard.local.run import RunFolder, events, is_controlled, read_run

pytestmark = pytest.mark.e2e

CVRP = {
    "trainer": {"name": "cvrp", "params": {"preset": "tiny", "steps": 40, "seed": 3}},
    "device": "cpu",
    "nodes": 2,
    "parallelism": {"globalBatchSize": 16},
    "checkpoint": {"interval": {"steps": 5}},
    "restart": {"backoff": {"initial": "1s"}},
    "metrics": {"interval": "1s"},
    "gracePeriod": "20s",
}
# The same weights, from a training with pauses: however fast the machine is, it is hit in the middle.
PATIENT = CVRP | {
    "trainer": CVRP["trainer"] | {"name": "patient:Patient"},
    "workingDir": str(WORKER_MODULES),
}


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory, shared_cache, new_laptop):
    """An undisturbed run: its last status, and the weights that every other run must reach."""
    home = tmp_path_factory.mktemp("undisturbed")
    (home / "cache").symlink_to(shared_cache)
    laptop = new_laptop(RunFolder(home / "runs" / "demo"))
    with pytest.MonkeyPatch.context() as patch, without_pytest():
        for name, value in SHARED.items():
            patch.setenv(name, value)
        outcome = []
        thread = threading.Thread(target=lambda: outcome.append(asyncio.run(laptop.run(**CVRP))))
        thread.start()
        thread.join()
    (job,) = outcome
    assert not laptop.left
    return job, laptop


def test_a_job_trains_on_two_nodes_to_its_end(undisturbed):
    job, laptop = undisturbed
    status = job.status
    assert status.state == "Succeeded", status.message
    assert (status.progress.step, status.progress.total_steps) == (40, 40)
    assert status.restarts.total == 0
    assert status.round == 1
    assert status.checkpoint.step == 40
    assert (status.batch.per_process, status.batch.whole, status.batch.accumulation) == (8, 16, 1)
    assert status.metrics["cost"] < status.metrics["costUntrained"]
    assert read_run(laptop.folder) == job, "what is returned is what is on disk"
    states = list(dict.fromkeys(seen.status.state for seen in laptop.changes))
    assert "Running" in states
    assert states[-1] == "Succeeded"
    assert [event.reason for event in laptop.events] == [event.reason for event in events(laptop.folder)]
    assert [event.reason for event in laptop.events] == ["RoundOpened", "Training", "Completed"]
    assert is_controlled(laptop.folder) is None


@pytest.mark.parametrize("victim", ["worker", "agent", "pod"])
async def test_a_kill_in_the_middle_changes_no_bit_of_the_weights(laptop, undisturbed, victim, request):
    if victim != "agent":  # that one is about processes of a template that no other job shares
        request.getfixturevalue("one_template")
    laptop.create(**PATIENT)
    laptop.begin()
    await laptop.reached(14)
    folder, running = laptop.processes(1)
    if victim == "worker":
        (pid,) = json.loads((folder / "run" / "workers.json").read_bytes())["pids"].values()
        os.kill(pid, signal.SIGKILL)
    elif victim == "agent":
        running.agent.kill(signal.SIGKILL)
    else:
        uid = record.read(folder / "pod.json", record.PodRecord).uid
        for process in carrying("TORCHYARD_POD_UID", uid):
            process.kill(signal.SIGKILL)
    job = await laptop.ended()
    assert job.status.state == "Succeeded", job.status.message
    assert laptop.weights() == undisturbed[1].weights()
    assert job.status.round == 2
    assert job.status.restarts.total == 1
    attempt = job.status.attempts[0]
    if victim == "worker":
        assert (attempt.cause.rank, attempt.cause.exit_code) == (1, 137)
    assert attempt.cause.pod
    assert not laptop.left


async def train_until_the_controller_dies(laptop):
    laptop.create(**PATIENT)
    controller = laptop.controller_process()
    try:
        await laptop.reached(10)
    finally:
        controller.kill()
        controller.wait()


async def test_the_death_of_the_controller_disturbs_nothing(laptop, undisturbed):
    await train_until_the_controller_dies(laptop)
    members = {process.pid for process in laptop.left}
    assert members, "the gang trains on"
    assert is_controlled(laptop.folder) is None
    laptop.begin()
    job = await laptop.ended()
    assert job.status.state == "Succeeded", job.status.message
    assert job.status.round == 1, "adopted, not started again"
    assert job.status.restarts.total == 0
    assert laptop.weights() == undisturbed[1].weights()
    assert not laptop.left


@pytest.mark.usefixtures("one_template")
async def test_a_changed_controller_address_replaces_the_gang(laptop, undisturbed):
    await train_until_the_controller_dies(laptop)
    before = {process.pid for process in laptop.left}
    for path in laptop.folder.pods.glob("*/pod.json"):
        pod = record.read(path, record.PodRecord)
        record.write(path, msgspec.structs.replace(pod, url="http://127.0.0.1:1"))
    laptop.begin()
    await laptop.until(lambda: is_controlled(laptop.folder) and not before & {each.pid for each in laptop.left})
    job = await laptop.ended()
    assert job.status.state == "Succeeded", job.status.message
    assert job.status.round == 2
    assert laptop.weights() == undisturbed[1].weights()


@pytest.mark.usefixtures("one_template")
async def test_stop_saves_and_the_same_run_continues_from_the_checkpoint(laptop, undisturbed):
    made = laptop.create(**PATIENT)
    laptop.begin()
    await laptop.reached(10)
    laptop.stop.set()
    job = await laptop.ended()
    assert job.status.state == "Suspended", job.status.message
    assert job.spec.suspend
    assert job.status.checkpoint.step >= 10
    assert not laptop.left
    again = laptop.create(**PATIENT)
    assert again.metadata.uid == made.metadata.uid
    laptop.begin()
    job = await laptop.ended()
    assert job.status.state == "Succeeded", job.status.message
    assert job.status.restarts.counted == 0
    assert laptop.weights() == undisturbed[1].weights()
