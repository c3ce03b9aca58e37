"""Modes of a trainer as jobs of two local nodes: what they measure and make is in the status."""

import json

import pytest

from torchyard.client.local import LocalBackend

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("one_template")]

TINY = {
    "steps": 6, "seed": 7, "customers": 6, "samples": 4, "batch": 12, "embedding": 16, "heads": 2, "layers": 1,
    "evalInstances": 32, "evalEvery": 6,
}  # fmt: skip


def trainer(mode="train", **params):
    return {"name": "cvrp", "mode": mode, "params": TINY | params}


def condition(job, kind):
    return next(each for each in job.status.conditions if each.type == kind)


async def test_preflight_over_two_nodes_measures_the_nodes_and_their_connection(laptop):
    job = await laptop.run(trainer=trainer("preflight"), nodes=2, device="cpu")
    assert job.status.state == "Succeeded", job.status.message
    assert job.status.metrics.keys() >= {"allReduceBytesPerSecond", "storageWriteBytesPerSecond", "teraflopsPerSecond"}
    assert all(value > 0 for value in job.status.metrics.values())


async def test_a_job_exports_when_it_is_done_and_another_one_its_checkpoint(laptop, home):
    job = await laptop.run(trainer=trainer(), export={}, device="cpu")
    assert job.status.state == "Succeeded", job.status.message
    verified = condition(job, "ExportVerified")
    assert (verified.status, verified.reason) == ("True", "ExportVerified")
    made = {artifact.name: artifact for artifact in job.status.artifacts}
    assert made["export/safetensors/model.safetensors"].verified is True
    manifest = json.loads((laptop.folder.checkpoints / "export" / "safetensors" / "manifest.json").read_text())
    assert manifest["files"]["model.safetensors"]["sha256"] == made["export/safetensors/model.safetensors"].sha256
    assert manifest["metrics"]["cost"] == pytest.approx(job.status.metrics["cost"], rel=1e-5)


async def test_a_job_evaluates_the_checkpoint_of_another_by_its_name(laptop, home):
    first = await laptop.run(trainer=trainer(), device="cpu")
    other = home / "runs" / "other"
    laptop.folder.path.rename(other)
    job = await laptop.run(trainer=trainer("eval"), device="cpu", checkpoint={"resumeFrom": "other"})
    assert job.status.state == "Succeeded", job.status.message
    assert job.status.metrics["cost"] == pytest.approx(first.status.metrics["cost"], rel=1e-5)
    assert job.status.progress.step == 6


async def test_a_built_in_workload_imports_nothing_of_the_folder_that_it_starts_in(laptop, tmp_path):
    (folder := tmp_path / "strange").mkdir()
    for name in ("json", "torch", "torchyard_trainers", "torchyard_agent", "runpy", "asyncio", "sitecustomize"):
        (folder / f"{name}.py").write_text(f"open({str(folder / 'ran')!r}, 'a').write(__file__)\n")
    params = {"environment": "bandit", "environmentSteps": 2048}
    job = await laptop.run(trainer={"name": "vecrl", "params": params}, workingDir=str(folder))
    assert job.status.state == "Succeeded", job.status.message
    assert not (folder / "ran").exists()
    assert job.status.warnings == []  # warm start is on: no file hides a module


async def test_a_run_is_traced_while_it_trains(laptop, until):
    laptop.create(trainer=trainer(steps=100_000, evalEvery=100_000), nodes=2, device="cpu")
    laptop.begin()
    await laptop.reached(3)

    request = json.dumps({"id": "a", "kind": "trace", "steps": 2})
    assert await LocalBackend().profile(laptop.folder.name, request, replace=False) == 2
    folder = laptop.folder.checkpoints / "profile"
    await until(lambda: len(list(folder.glob("trace-*-rank-[01].json.gz"))) == 2, "both ranks wrote a trace")
    laptop.kill.set()
    await laptop.ended()
