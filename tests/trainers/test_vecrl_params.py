"""Parameters of vecrl: mistakes are named, presets are complete."""

import pytest
from little_rl import SNAKES, settled

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.vecrl import params
from torchyard_trainers.vecrl.task import VecRL


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"grid": 8}, "trainer.params.grid: is of environment snake, not cartpole; remove it"),
        ({"horizon": 7}, "trainer.params.horizon: 7 is not a multiple of minibatches (2)"),
        ({"model": "cnn"}, "trainer.params.model: cnn sees a grid, and cartpole has none; use mlp"),
        ({"policies": "independent"}, "trainer.params.policies: independent needs several agents, and there is 1"),
        ({**SNAKES, "view": 9}, "trainer.params.view: 9 is wider than grid (6)"),
        ({**SNAKES, "agents": 8}, "trainer.params.grid: 6 x 6 cells are too few for 8 snakes and 3 pieces of food"),
        ({"environment": "pong"}, "trainer.params.environment: 'pong' is none of cartpole, snake, bandit; use"),
        ({"frameStack": 4}, "trainer.params.frameStack: 4, but cartpole is no environment of gymnasium; remove it"),
        (
            {"environmentWorkers": 2},
            "trainer.params.environmentWorkers: 2, but cartpole is no environment of gymnasium",
        ),
        ({"actionBounds": "rescale"}, "trainer.params.actionBounds: rescale, but cartpole is no environment of gymnas"),
        ({"preset": "continuous"}, "trainer.params.preset: continuous, but the actions of cartpole are choices; use t"),
        ({**SNAKES, "model": "nature"}, "trainer.params.model: nature sees pictures, and snake has none; use mlp"),
        ({"valueClip": -1}, "trainer.params.valueClip: expected `float` >= 0.0 (is -1)"),
        ({"lr": 0}, "trainer.params.lr: expected `float` > 0.0 (is 0)"),
        ({"enviroment": "snake"}, "unknown field `enviroment`"),
    ],
)
def test_a_mistake_is_named(given, message):
    with pytest.raises(ConfigError) as caught:
        settled(**given)
    assert message in str(caught.value)


@pytest.mark.parametrize("preset", params.PRESETS)
@pytest.mark.parametrize("environment", ["cartpole", "snake", "bandit"])
def test_every_preset_is_complete_and_builds(preset, environment):
    work = VecRL(params.resolve_params({"preset": preset, "environment": environment}, Parallelism()))
    assert work.total_steps == work.settings.rollouts * work.settings.epochs * work.settings.minibatches
    assert work.settings.rollouts * work.global_batch * work.settings.horizon >= work.settings.environment_steps


@pytest.mark.parametrize("preset", ["tiny", "continuous"])
def test_presets_of_continuous_actions_are_those_of_their_environment(preset):
    settings = params.resolve_params({"preset": preset, "environment": "Pendulum-v1"}, Parallelism())
    assert settings.normalize_observations
    assert (settings.environments, settings.horizon, settings.minibatches) == {
        "tiny": (16, 128, 8),
        "continuous": (1, 2048, 32),  # as CleanRL's ppo_continuous_action.py
    }[preset]
    without = params.resolve_params({"preset": preset, "environment": "Pendulum-v1", "valueClip": 0}, Parallelism())
    assert without.value_clip == 0


def test_the_global_batch_is_the_number_of_environments():
    given = {"environments": 8}
    assert params.resolve_params(given, Parallelism(global_batch_size=32)).environments == 32
