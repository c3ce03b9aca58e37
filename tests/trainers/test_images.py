"""A network with statistics and noise of its own is trained, resumed and evaluated like any other."""

import json

import pytest
from little_images import PICTURES
from safetensors.torch import load_file

pytestmark = pytest.mark.e2e


def config(mode="train", params=None, **sections):
    sections.setdefault("parallelism", {"precision": "fp32", "microBatchSize": 12})
    trainer = {"name": "little_images:Images", "mode": mode, "params": params or {}}
    return {"trainer": trainer, "device": "cpu", "logging": {"tensorboard": False}, **sections}


def learned(yard):
    return load_file(yard.checkpoints / "final" / "model.safetensors")


@pytest.mark.parametrize("mode", ["train", "bench"])
def test_no_forward_pass_has_a_single_image(yard, mode):
    """BatchNorm refuses one: nothing is tried with it, and FLOPs are counted without."""
    yard.train(config(mode, parallelism={"precision": "fp32"}), 1)
    assert yard.report()["metrics"]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_sharded_layers_take_images_in_half_precision(yard, calm, precision):
    for each, strategy in ((calm, "ddp"), (yard, "fsdp")):
        each.train(config(parallelism={"precision": precision, "strategy": strategy, "microBatchSize": 12}), 2)
    assert yard.losses() == pytest.approx(calm.losses(), rel=1e-2)
    assert yard.metrics()[-1]["evalLoss"] == pytest.approx(calm.metrics()[-1]["evalLoss"], rel=2e-2)


@pytest.mark.parametrize("how", ["full", "selective"])
def test_recomputed_layers_draw_no_new_noise_and_update_no_statistics_twice(yard, calm, how):
    calm.train(config(), 1)
    again = {"precision": "fp32", "microBatchSize": 12, "activationCheckpointing": how}
    yard.train(config(parallelism=again), 1)
    assert yard.losses() == calm.losses()
    assert yard.weights() == calm.weights()


@pytest.mark.parametrize(("strategy", "world"), [("ddp", 3), ("fsdp", 2)])
def test_a_run_continues_with_the_same_statistics_and_noise(yard, calm, strategy, world):
    parallelism = {"precision": "fp32", "strategy": strategy, "microBatchSize": 3}
    calm.train(config(params={"steps": 12, "finite": True}, parallelism=parallelism), world)
    for steps in (7, 12):
        yard.train(config(params={"steps": steps, "finite": True}, parallelism=parallelism), world)
    assert yard.losses() == calm.losses()
    assert yard.weights() == calm.weights()
    assert yard.report()["epoch"] == pytest.approx(12 * 12 / PICTURES), "its second epoch has begun"


def test_a_run_on_another_data_set_does_not_resume(yard):
    yard.train(config(params={"steps": 2}), 1)
    assert yard.start(config(params={"steps": 4, "finite": True})).wait() == [65]
    assert "datasetSize is 103 but was None" in yard.failure()["message"]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_all_ranks_have_the_same_statistics(yard, strategy):
    """So they evaluate alike, and agree on which models are the best."""
    parallelism = {"precision": "fp32", "strategy": strategy}
    yard.train(config(params={"steps": 30}, parallelism=parallelism, checkpoint={"keepBest": 2}), 2)
    ranks = [json.loads((yard.run_dir / f"report.{rank}.json").read_text())["metrics"] for rank in range(2)]
    assert ranks[0]["evalLoss"] == ranks[1]["evalLoss"]


def test_a_skipped_step_does_not_change_the_statistics_of_batch_norm(yard):
    yard.train(config(params={"broken": 2}, health={"nonFinite": "skip"}), 1)
    assert yard.metrics()[-1]["skippedSteps"] == 1
    assert all(tensor.isfinite().all() for tensor in learned(yard).values())
    assert "evalLoss" in yard.metrics()[-1]
