"""Behaviour cloning depends on no world size, strategy or micro-batch; a resumed run continues with the same bits."""

import json

import pytest
import torch
from PIL import Image
from tests.support.trainers.gangs import Yard

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
        "evalEpisodes": 7,
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


def test_one_and_two_processes_resume_each_other_and_the_last_one_is_evaluated_with_pictures(yard, undisturbed):
    yard.train(settings(1))
    yard.train(settings(2, parallelism={"strategy": "fsdp"}), world=2)
    yard.train(settings(4))
    yard.assert_learned(undisturbed, LEARNED)
    root, last = yard.checkpoints, undisturbed[-1]
    yard.checkpoints = yard.root / "evaluation of it"
    yard.train(settings(4, mode="eval", checkpoint={"resumeFrom": str(root)}), world=2)
    metrics = yard.report()["metrics"]
    assert {name: metrics[name] for name in LEARNED & set(metrics)} == {
        name: pytest.approx(last[name], abs=1e-5) for name in LEARNED & set(metrics)
    }
    folder = yard.checkpoints / "evaluation"
    work = VisionLanguageAction(resolve_params({}, Parallelism()))
    scene = work.table.scenes(torch.arange(4), "episodes", held_out=True)
    assert [each["text"].split(":")[0] for each in json.loads((folder / "episodes.json").read_text())] == [
        tabletop.sentence(int(colour)) for colour in scene.colour
    ]
    with Image.open(folder / "episodes.gif") as film, Image.open(folder / "episodes.png") as strip:
        assert (film.n_frames, strip.height) == (tabletop.STEPS + 1, film.height)
    assert {"evaluation/episodes.gif", "evaluation/episodes.png"} <= {
        each["name"] for each in yard.report()["artifacts"]
    }
