"""Fine-tuning depends on no world size, strategy or micro-batch; a resumed run continues with the same bits."""

import pytest
from tests.support.trainers.gangs import AT_ONCE, Yard

pytestmark = pytest.mark.e2e

LEARNED = {"loss", "gradNorm", "tokens", "completionTokens", "evalLoss", "perplexity", "exactMatch"}


def settings(steps=6, *, params=None, **sections):
    """A run of a few steps; 10 samples do not divide by 3, and sums of two digits differ in length."""
    small = {
        "task": "arithmetic",
        "length": 1,
        "steps": steps,
        "batch": 10,
        "warmupSteps": 0,
        "lrFinal": 3e-3,
        "evalSamples": 7,
        "evalBatch": 3,
        "evalEvery": 3,
        "logEvery": 1,
        "seed": 7,
    }
    return {
        "trainer": {"name": "lm", "params": small | (params or {})},
        "device": "cpu",
        "logging": {"tensorboard": False},
        **sections,
        "parallelism": AT_ONCE | sections.get("parallelism", {}),
    }


@pytest.fixture(scope="module")
def undisturbed(fork_server, tmp_path_factory):
    """What one process measured that was never stopped."""
    yard = Yard(fork_server, tmp_path_factory.mktemp("undisturbed"))
    yard.train(settings())
    return yard.metrics()


@pytest.mark.parametrize(
    ("world", "nodes", "parallelism"),
    [
        (1, 1, {"microBatchSize": 3}),
        (2, 1, {"strategy": "ddp"}),
        (2, 1, {"strategy": "fsdp", "microBatchSize": 2}),
        (3, 1, {"strategy": "fsdp"}),
        (4, 2, {"strategy": "hsdp", "microBatchSize": 2}),
    ],
)
def test_world_size_strategy_and_accumulation_are_the_same_run(yard, undisturbed, world, nodes, parallelism):
    assert undisturbed[0]["completionTokens"] not in (2, 3), "answers differ in length: tokens are counted, not samples"
    yard.train(settings(parallelism=parallelism), world, nodes=nodes)
    yard.assert_learned(undisturbed, LEARNED)


def test_one_and_two_processes_resume_each_other(yard, undisturbed):
    yard.train(settings(2))
    yard.train(settings(4, parallelism={"strategy": "fsdp"}), world=2)
    yard.train(settings(6))
    yard.assert_learned(undisturbed, LEARNED)
