"""A GPU that is too small for the micro-batch: the job finds one that fits, and computes the same steps with it."""

import asyncio
import json

import pytest
from tests.support.waiting import DEADLINE

from torchyard.api.resource import read_job
from torchyard.local.controller import run_job
from torchyard.local.runs import create_run

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("one_template")]

CONFIG = {
    "trainer": {"name": "cvrp", "params": {"steps": 6, "customers": 6, "batch": 16, "evalInstances": 32}},
    "device": "cpu",
    "logging": {"tensorboard": False},
}
# The built-in trainer on a device that holds so many instances of a forward pass and no more.
SCRIPT = """
import os, sys
import torch
from torchyard_trainers.core.command import main
from torchyard_trainers.cvrp.policy import Policy

forward = Policy.forward

def forward_on_a_small_gpu(self, instances, keys=None, **asked):
    if keys is not None and len(instances.demand) > int(sys.argv[2]):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    return forward(self, instances, keys, **asked)

Policy.forward = forward_on_a_small_gpu
code = main(["--config", sys.argv[1]])
sys.stdout.flush()
if code:
    os._exit(code)
"""


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Return the working directory of both jobs: what they preload could depend on it."""
    return tmp_path_factory.mktemp("work")


async def run(folder, tmp_path, work, *, fits, micro_batch=8):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**CONFIG, "parallelism": {"microBatchSize": micro_batch}}))
    imported_once = {"preload": ["torchyard_trainers.preload"]}
    arguments = [str(config), str(fits)]
    spec = {"script": SCRIPT, "args": arguments, "nodes": 2, "metrics": {"interval": "1s"}, **imported_once}
    create_run(folder, read_job({"metadata": {"name": folder.name}, "spec": spec}), work)
    async with asyncio.timeout(DEADLINE):
        return (await run_job(folder)).status


async def test_the_micro_batch_is_halved_until_it_fits_and_nothing_is_charged(folder, tmp_path, work):
    status = await run(folder, tmp_path, work, fits=3)
    assert status.state == "Succeeded", status.message
    assert [(each.reason, each.cause and each.cause.exit_code) for each in status.attempts] == [
        ("GpuOutOfMemory", 69),  # 8 instances on each of two ranks
        ("GpuOutOfMemory", 69),  # 4
        ("Completed", None),  # 2
    ]
    assert status.rendezvous.micro_batch == 2
    assert (status.restarts.total, status.restarts.counted) == (2, 0)
    assert json.loads((folder.checkpoints / "DONE").read_text())["step"] == 6


async def test_a_gpu_that_does_not_hold_one_sample_ends_the_job_with_a_sentence(folder, tmp_path, work):
    status = await run(folder, tmp_path, work, fits=0, micro_batch=2)
    assert (status.state, status.reason) == ("Failed", "GpuOutOfMemory")
    assert status.round == 2
    assert "micro-batches of 1" in status.message
    assert "use strategy fsdp or a larger GPU" in status.message
