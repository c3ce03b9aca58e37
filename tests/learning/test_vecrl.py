"""CartPole and Snake are really learned, to the published thresholds of preset tiny.

CartPole: 500,000 steps, then a mean of at least 475 of 500 over 100 greedy episodes. Snake on a 12 x 12 torus with 4
snakes: a mean length of at least 8. Pendulum: a mean of at least -250 after 200,000 steps. A task of MuJoCo, with the
settings of CleanRL: a mean of at least 900 of 1,000 after 51,200 steps.
"""

import pytest


@pytest.mark.parametrize("name", ["cartpole", "snake", "snake-independent", "bandit", "pendulum"])
def test_greedy_episodes_reach_the_threshold_with_every_seed(reach, name):
    for summary in reach(f"vecrl-{name}"):
        assert summary["episodes"] > 100, summary


def test_a_pole_of_mujoco_is_balanced_with_every_seed(reach):
    pytest.importorskip("mujoco", reason="mujoco is not installed: pip install torchyard[mujoco]")
    reach("vecrl-mujoco")
