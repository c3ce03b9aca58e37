"""fp16: an overflow is the scaler's business until there is nothing left to scale down; then it is divergence."""

import pytest
import torch
from tests.trainers.test_strategies import settings
from torch import nn

from torchyard_trainers.core.health.guard import Guard
from torchyard_trainers.core.parallel import Parallel
from torchyard_trainers.core.precision import Precision
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.step import optimize
from torchyard_trainers.core.workload import LossOutput, Session, Workload
from torchyard_trainers.core.world import World


class InfiniteSlope(Workload):
    """Minimizes the root of a weight that is 0: a finite loss whose gradient is infinite at any scale."""

    global_batch = 1
    max_grad_norm = 1.0

    def loss(self, session, batch):
        return LossOutput((session.parallel.module.weight.sqrt() * batch.weights).sum(), {})


def until_divergence(name):
    """Return the steps before the one that diverged, and what the guard has counted of them."""
    module = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(module.weight)
    world = World(0, 1, 0, torch.device("cpu"), grouped=False)
    precision = Precision(name, world.device, sharded=False)
    reporter = Reporter(None, rank=0, local_rank=0, round_number=0)
    session = Session(Parallel("single", module, module), precision, world, reporter, None)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    guard = Guard("fail")
    for step in range(100):
        totals = optimize(InfiniteSlope(), session, optimizer, step, {})
        if totals.fault:
            assert module.weight.item() == 0
            return step, guard.metrics
        guard.rolls_back(step + 1, totals.fault, overflowed=totals.overflowed)
    pytest.fail("trained on infinite gradients for 100 steps")


def test_gradients_that_no_scale_makes_finite_end_as_divergence_and_every_overflow_is_counted():
    assert until_divergence("fp16") == (16, {"skippedSteps": 16.0})  # from scale 2**16, halved at each overflow


@pytest.mark.e2e
def test_an_overflow_in_one_ranks_shard_is_left_out_by_all_ranks(yard):
    given = settings(strategy="fsdp", precision="fp16")
    gang = yard.start(given, 2, nodes=2, function=("little_lm:train_overflowing", [{"steps": 20}]))
    assert gang.wait() == [66, 66], gang.output()
    assert yard.failure()["message"].startswith("step 17: loss ")
    assert "loss nan" not in gang.output(), "an update with such a gradient reached some weights"


def test_without_a_scaler_the_first_infinite_gradient_is_divergence():
    assert until_divergence("fp32") == (0, {})
