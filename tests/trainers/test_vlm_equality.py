"""PPO of a vision-language model depends on no world size, strategy or micro-batch; kills change no bit of it."""

import pytest
from PIL import Image
from tests.support.trainers.gangs import AT_ONCE, Yard

pytestmark = pytest.mark.e2e

LEARNED = {
    *("loss", "policyLoss", "valueLoss", "entropy", "approxKl", "clipFraction", "gradNorm", "explainedVariance"),
    *("episodes", "rolloutEpisodes", "episodeReturn", "successRate", "successRateSampled", "episodeLength"),
    "expertAccuracy",
}


def settings(rollouts=2, *, mode="train", params=None, **sections):
    """A run of two steps that clone and four a rollout; 10 environments do not divide by 3."""
    small = {
        "environmentSteps": rollouts * 10 * 8,
        "environments": 10,
        "horizon": 8,
        "epochs": 2,
        "minibatches": 2,
        "cloneSteps": 4,
        "lr": 1e-3,
        "lrFinal": 1e-3,
        "evalEpisodes": 5,
        "evalBatch": 3,
        "evalEvery": 1,
        "logEvery": 1,
        "seed": 7,
    }
    return {
        "trainer": {"name": "vlm", "mode": mode, "params": small | (params or {})},
        "device": "cpu",
        "logging": {"tensorboard": False},
        **sections,
        "parallelism": AT_ONCE | sections.get("parallelism", {}),
    }


@pytest.fixture(scope="module")
def undisturbed(fork_server, tmp_path_factory):
    """What one process measured that was never stopped, and its weights."""
    yard = Yard(fork_server, tmp_path_factory.mktemp("undisturbed"))
    yard.train(settings())
    return yard


@pytest.mark.parametrize(
    ("world", "parallelism"),
    [
        (1, {"microBatchSize": 3, "activationCheckpointing": "full"}),
        (2, {"strategy": "ddp"}),
        (3, {"strategy": "ddp", "microBatchSize": 2}),
        (2, {"strategy": "fsdp", "microBatchSize": 3}),
    ],
)
def test_world_size_strategy_and_accumulation_are_the_same_run(yard, undisturbed, world, parallelism):
    yard.train(settings(parallelism=parallelism), world)
    yard.assert_learned(undisturbed.metrics(), LEARNED)


def test_two_processes_go_on_where_one_stopped_and_the_last_one_is_evaluated_with_pictures(yard, undisturbed):
    yard.train(settings(1))
    yard.train(settings(2), world=2)
    yard.assert_learned(undisturbed.metrics(), LEARNED)
    root, last = yard.checkpoints, undisturbed.metrics()[-1]
    assert "successRate over steps" in (root / "final" / "curve.svg").read_text()
    yard.checkpoints = yard.root / "evaluation of it"
    yard.train(settings(2, mode="eval", checkpoint={"resumeFrom": str(root)}), world=2)
    assert yard.report()["metrics"]["successRate"] == pytest.approx(last["successRate"])
    folder = yard.checkpoints / "evaluation"
    with Image.open(folder / "episodes.gif") as film, Image.open(folder / "episodes.png") as strip:
        assert film.n_frames > 1
        assert strip.height == film.height
    assert {"evaluation/episodes.gif", "evaluation/episodes.png"} <= {
        each["name"] for each in yard.report()["artifacts"]
    }
