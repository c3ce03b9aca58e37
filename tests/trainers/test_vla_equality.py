"""Behaviour cloning depends on no world size, strategy or micro-batch; a resumed run continues with the same bits."""

import json
import math

import pytest
import torch
from PIL import Image
from tests.support.trainers.gangs import AT_ONCE, Yard

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.vla import tabletop
from torchyard_trainers.vla.params import resolve_params
from torchyard_trainers.vla.task import VisionLanguageAction

pytestmark = pytest.mark.e2e

LEARNED = {"loss", "gradNorm", "validActions", "flowLoss", "successRate", "wrongObjectRate", "episodes"}


def settings(steps=4, *, mode="train", params=None, **sections):
    """A run of a few steps; 10 samples do not divide by 3, and their chunks differ in valid actions."""
    small = {
        "steps": steps,
        "batch": 10,
        "warmupSteps": 0,
        "schedule": "constant",
        "evalEpisodes": 5,
        "evalSamples": 7,
        "evalBatch": 3,
        "flowSteps": 2,
        "evalEvery": 2,
        "draws": 2,
        "logEvery": 1,
        "seed": 7,
    }
    return {
        "trainer": {"name": "vla", "mode": mode, "params": small | (params or {})},
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
    ("world", "parallelism"),
    [
        (1, {"microBatchSize": 3, "activationCheckpointing": "full"}),
        (2, {"strategy": "ddp"}),
        (2, {"strategy": "fsdp", "microBatchSize": 2, "activationCheckpointing": "selective"}),
        (3, {"strategy": "fsdp"}),
        (3, {"strategy": "ddp", "microBatchSize": 2}),
    ],
)
def test_world_size_strategy_and_accumulation_are_the_same_run(yard, undisturbed, world, parallelism):
    assert 1 < undisturbed[0]["validActions"] < 4, (
        "chunks end with their episodes: action steps are counted, not samples"
    )
    yard.train(settings(parallelism=parallelism), world)
    yard.assert_learned(undisturbed, LEARNED)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_bf16_learns_about_the_same_with_every_strategy(yard, undisturbed, strategy):
    yard.train(settings(2, parallelism={"precision": "bf16", "strategy": strategy}), world=2)
    for found, exact in zip(yard.metrics(), undisturbed, strict=False):
        assert found["loss"] == pytest.approx(exact["loss"], rel=0.02)
        assert found["loss"] != exact["loss"]
    assert yard.metrics()[-1]["flowLoss"] == pytest.approx(undisturbed[1]["flowLoss"], rel=0.02)


def test_fp16_finds_a_scale_for_its_loss_and_then_updates_the_weights(yard, undisturbed):
    yard.train(settings(8, params={"evalEvery": 8}, parallelism={"precision": "fp16", "strategy": "fsdp"}), world=2)
    assert yard.losses()[1] == pytest.approx(undisturbed[0]["loss"], rel=0.02)
    last = yard.metrics()[-1]
    assert yard.record(8)["scaler"]["scale"] < 65536, "gradients of the first steps overflow"
    assert math.isfinite(last["gradNorm"])
    assert last["flowLoss"] != yard.report()["metrics"]["flowLossUntrained"]


def test_one_and_two_processes_resume_each_other_and_the_last_one_is_evaluated_with_pictures(yard, undisturbed):
    yard.train(settings(1))
    yard.train(settings(2, parallelism={"strategy": "fsdp"}), world=2)
    yard.train(settings(4))
    yard.assert_learned(undisturbed, LEARNED)
    root, last = yard.checkpoints, undisturbed[-1]
    assert (root / "final" / "curve.svg").read_text().count("<polyline") == 1
    yard.checkpoints = yard.root / "evaluation of it"
    yard.train(settings(4, mode="eval", checkpoint={"resumeFrom": str(root)}), world=2)
    metrics = yard.report()["metrics"]
    assert {name: metrics[name] for name in LEARNED & set(metrics)} == {
        name: pytest.approx(last[name], abs=1e-5) for name in LEARNED & set(metrics)
    }
    folder = yard.checkpoints / "evaluation"
    work = VisionLanguageAction(resolve_params({}, Parallelism()))
    scene = work.tabletop.scenes(torch.arange(4), "episodes", held_out=True)
    assert [each["text"].split(":")[0] for each in json.loads((folder / "episodes.json").read_text())] == [
        tabletop.sentence(int(colour)) for colour in scene.colour
    ]
    with Image.open(folder / "episodes.gif") as film, Image.open(folder / "episodes.png") as strip:
        assert (film.n_frames, strip.height) == (tabletop.STEPS + 1, film.height)
    assert {"evaluation/episodes.gif", "evaluation/episodes.png"} <= {
        each["name"] for each in yard.report()["artifacts"]
    }
