"""A rank that computes slowly is distinguished from those that wait for it, also in an unmodified script."""

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("one_template")]

SCRIPT = """
import time, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
    time.sleep(0.12 if dist.get_rank() == 1 else 0.03)  # the work of a step
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


async def test_a_slowed_rank_of_an_unmodified_script_is_named(laptop):
    env = [{"name": "TORCHYARD_PACE", "value": "2"}]
    job = await laptop.run(script=SCRIPT, nodes=2, device="cpu", env=env, metrics={"interval": "1s"})
    assert job.status.state == "Succeeded"
    (slow,) = job.status.pace.stragglers
    assert (slow.rank, slow.node) == (1, "local-1")
    assert slow.ratio > 2.0, "the waits of rank 0 are no work of its own"
    assert any("rank 1 on node local-1: " in text for text in job.status.warnings)
