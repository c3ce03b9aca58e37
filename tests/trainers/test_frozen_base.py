"""Frozen parameters cost no checkpoint bytes and no optimizer state, and a run resumes on the same base only."""

import json

import pytest
from tests.support.trainers.gangs import Yard

from torchyard_trainers.core.checkpoints.commits import SHARDS
from torchyard_trainers.core.checkpoints.index import INDEX

pytestmark = pytest.mark.e2e


def settings(strategy="single", **params):
    return {
        "trainer": {"name": "little_lora:LittleLora", "params": params},
        "device": "cpu",
        "logging": {"tensorboard": False},
        "parallelism": {"strategy": strategy, "precision": "fp32"},
    }


def saved(yard: Yard, step: int) -> set[str]:
    """Names of the tensors of a checkpoint."""
    index = json.loads((yard.checkpoints / f"step-{step:08d}" / SHARDS / INDEX).read_text())
    return set(index["tensors"])


ADAPTERS = {f"blocks.{block}.wide.{side}.weight" for block in (0, 1) for side in ("down", "up")}


@pytest.mark.parametrize(("strategy", "world", "own_disks"), [("ddp", 2, False), ("fsdp", 2, True)])
def test_a_checkpoint_holds_the_adapters_only_and_resumes_at_another_size(yard, calm, strategy, world, own_disks):
    yard.own_disks = own_disks
    calm.train(settings())
    yard.train(settings(strategy, steps=3), world)
    names = saved(yard, 3)
    assert {name for name in names if name.startswith("model.")} == {f"model.{name}" for name in ADAPTERS}
    states = {name for name in names if name.startswith("optimizer.state.")}
    assert states == {f"optimizer.state.{name}.momentum_buffer" for name in ADAPTERS}
    yard.own_disks = False
    yard.train(settings(), 1)
    assert list(yard.losses().values()) == pytest.approx(list(calm.losses().values()), abs=1e-5)


def test_a_run_does_not_resume_on_another_base(yard):
    yard.train(settings(steps=2))
    gang = yard.start(settings(steps=4, seed=1), 1)
    assert gang.wait() == [65], gang.output()
    assert "the frozen weights are other ones (frozen base is " in yard.failure()["message"]
    assert "set it back or use another checkpoint folder" in yard.failure()["message"]


def test_a_frozen_parameter_that_changes_is_saved(yard, calm):
    """A moving average inside the model has no other copy."""
    strategy, world = "fsdp", 2
    calm.train(settings(strategy, moving=True), world)
    yard.train(settings(strategy, moving=True, steps=3), world)
    assert {name for name in saved(yard, 3) if name.startswith("model.")} == {
        f"model.{name}" for name in {*ADAPTERS, "norm.weight"}
    }
    yard.train(settings(strategy, moving=True), world)
    assert yard.weights() == calm.weights()
