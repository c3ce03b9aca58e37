"""Evaluation spread over ranks: every item once, exactly, and in one precision."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from torchyard_trainers.core.evaluation import each_over_ranks, over_ranks, wilson
from torchyard_trainers.core.parallel import Parallel
from torchyard_trainers.core.precision import Precision
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.workload import Session
from torchyard_trainers.core.world import World

CPU = torch.device("cpu")
VALUES = torch.rand(64, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def session(rank=0, size=1, *, precision="fp32", sharded=False):
    module = nn.Linear(2, 2)
    reporter = Reporter(None, rank=0, local_rank=0, round_number=0)
    return Session(
        Parallel("fsdp" if sharded else "single", module, module),
        Precision(precision, CPU, sharded=sharded),
        World(rank, size, 0, CPU, grouped=False),
        reporter,
        None,
    )


@given(st.integers(1, 64), st.integers(1, 7), st.none() | st.integers(1, 9), st.booleans())
def test_every_item_is_measured_and_no_rank_calls_more_often_than_another(count, size, at_once, wide):
    calls, total = [], 0
    for rank in range(size):
        sizes = []

        def measure(positions, sizes=sizes):
            sizes.append(len(positions))
            return VALUES[positions] if wide else VALUES[positions, 0]

        total = total + over_ranks(session(rank, size), measure, count, at_once=at_once)
        calls.append(sizes)
    assert torch.equal(total, VALUES[:count] if wide else VALUES[:count, 0])  # the sum over ranks of a real group
    assert all(each == calls[0] for each in calls)


@pytest.mark.parametrize("sharded", [False, True])
def test_a_model_is_evaluated_in_one_precision_under_every_strategy(sharded):
    seen = []
    found = session(precision="bf16", sharded=sharded)

    def measure(positions):
        seen.append((found.parallel.module(torch.ones(2)).dtype, torch.is_grad_enabled()))
        return torch.zeros(len(positions))

    over_ranks(found, measure, 2)
    over_ranks(found, measure, 2, casts=False)
    assert seen == [(torch.bfloat16, False), (torch.float32, False)]


def test_any_value_of_an_item_reaches_every_rank():
    assert each_over_ranks(session(), lambda position: [position] * position, 3) == [[], [1], [2, 2]]


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(0, 10, 0.0, 0.2775), (8, 10, 0.4902, 0.9433), (10, 10, 0.7225, 1.0), (500, 1000, 0.4691, 0.5309)],
)
def test_the_confidence_interval_of_a_rate_is_that_of_wilson(successes, trials, low, high):
    assert wilson(successes, trials) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))
