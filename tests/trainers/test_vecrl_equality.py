"""Rollouts, too, depend on no world size, strategy or micro-batch; a kill during a save changes no bit."""

import re

import pytest
from tests.support.trainers.gangs import AT_ONCE, Yard, until

pytestmark = pytest.mark.e2e

SNAKE = {"environment": "snake", "grid": 6, "agents": 2, "food": 2, "view": 3}

PENDULUM = {"environment": "Pendulum-v1", "maxEpisodeSteps": 11, "environmentWorkers": 2, "normalizeRewards": True}


def settings(rollouts=3, *, params=None, **sections):
    """A run of four steps a rollout; 10 environments do not divide by 3 or 4."""
    small = {
        "environment": "cartpole",
        "environmentSteps": rollouts * 10 * 8,
        "environments": 10,
        "horizon": 8,
        "epochs": 2,
        "minibatches": 2,
        "width": 8,
        "layers": 1,
        "lr": 1e-3,
        "lrFinal": 1e-3,
        "evalEpisodes": 6,
        "evalEvery": 1,
        "logEvery": 1,
        "seed": 7,
    }
    return {
        "trainer": {"name": "vecrl", "params": small | (params or {})},
        "device": "cpu",
        "logging": {"tensorboard": False},
        **sections,
        "parallelism": AT_ONCE | sections.get("parallelism", {}),
    }


@pytest.fixture(scope="module")
def undisturbed(fork_server, tmp_path_factory):
    """What one process measured that was never stopped."""
    measured = {}
    for name, params in {"cartpole": {}, "snake": SNAKE}.items():
        yard = Yard(fork_server, tmp_path_factory.mktemp(name))
        yard.train(settings(params=params))
        measured[name] = yard.metrics()
    return measured


LEARNED = {
    *("loss", "policyLoss", "valueLoss", "entropy", "approxKl", "clipFraction", "gradNorm", "explainedVariance"),
    *("episodes", "rolloutEpisodes", "episodeReturn", "evalReturn", "evalLength"),
}


@pytest.mark.parametrize(
    ("world", "parallelism"),
    [
        (2, {"strategy": "ddp"}),
        (3, {"strategy": "ddp", "microBatchSize": 2}),
        (2, {"strategy": "fsdp"}),
        (3, {"strategy": "fsdp", "microBatchSize": 1}),
    ],
)
def test_world_size_strategy_and_accumulation_are_the_same_run(yard, undisturbed, world, parallelism):
    yard.train(settings(parallelism=parallelism), world)
    yard.assert_learned(undisturbed["cartpole"], LEARNED, rel=1e-4)


@pytest.mark.parametrize(("precision", "strategy"), [("bf16", "ddp"), ("bf16", "fsdp"), ("fp16", "fsdp")])
@pytest.mark.parametrize("environment", ["cartpole", "snake"])
def test_mixed_precision_learns_about_the_same_with_every_strategy(yard, undisturbed, environment, strategy, precision):
    params = {} if environment == "cartpole" else SNAKE | {"model": "cnn"}
    yard.train(settings(1, params=params, parallelism={"precision": precision, "strategy": strategy}), world=2)
    (first, *_) = yard.metrics()
    # A rounded score tips a choice here and there; what a rollout is worth stays about the same.
    assert first["valueLoss"] > 0
    assert first["entropy"] == pytest.approx(undisturbed[environment][0]["entropy"], rel=0.1)


def test_one_two_and_three_processes_resume_each_other(yard, undisturbed):
    yard.train(settings(1, params=SNAKE))
    yard.train(settings(2, params=SNAKE, parallelism={"strategy": "fsdp"}), world=2)
    yard.train(settings(3, params=SNAKE), world=3)
    yard.assert_learned(undisturbed["snake"], LEARNED, rel=1e-4)


def test_more_processes_than_environments_are_the_same_run(yard, fork_server, tmp_path):
    few = {"environments": 2, "evalEpisodes": 2}
    (tmp_path / "one").mkdir()
    one = Yard(fork_server, tmp_path / "one")
    one.train(settings(1, params=few))
    yard.train(settings(1, params=few), world=3)
    yard.assert_learned(one.metrics(), LEARNED, rel=1e-4)


@pytest.mark.parametrize(
    ("params", "strategy", "world"),
    [
        ({}, "single", 1),
        (SNAKE | {"policies": "independent", "model": "cnn"}, "ddp", 2),
        ({}, "ddp", 3),
        (SNAKE, "fsdp", 2),
        (PENDULUM, "ddp", 2),
    ],
)
def test_killed_while_it_saves_a_run_ends_with_the_same_bits(yard, tmp_path, params, strategy, world):
    given = settings(
        4,
        params={**params, "evalEvery": 4},
        parallelism={"strategy": strategy},
        checkpoint={"interval": {"steps": 3}},
    )
    (tmp_path / "calm").mkdir()
    calm = Yard(yard.server, tmp_path / "calm")
    calm.train(given, world)
    folder = re.escape(str(yard.checkpoints))
    # A step that is due is saved at the end of its rollout: 4, 8 and 12.
    for step in (8, 12):
        gang = yard.start(given, world, hold=(0, rf"os.rename {folder}/\.step-{step:08d}\."))
        until(yard.held.exists)
        gang.kill()
        gang.wait()
    yard.train(given, world)
    assert yard.weights() == calm.weights()
    assert [line["loss"] for line in yard.metrics()][-1] == calm.metrics()[-1]["loss"]


def test_another_horizon_is_another_run_and_is_refused(yard):
    yard.train(settings(1))
    gang = yard.start(settings(2, params={"horizon": 4}))
    assert gang.wait() == [65]
    assert "trainer.params.horizon" in gang.output()


def test_an_evaluation_in_the_middle_of_a_rollout_changes_nothing_of_what_is_learned(yard, undisturbed):
    yard.train(settings(evaluation={"everySteps": 3}))
    assert [line["step"] for line in yard.metrics() if "evalReturn" in line] == [3, 6, 9, 12]
    assert yard.losses() == {line["step"]: line["loss"] for line in undisturbed["cartpole"]}
