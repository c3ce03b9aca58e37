"""CartPole and Snake are really learned, to the published thresholds of preset tiny.

CartPole: 500,000 steps, then at least 475 of 500 over 100 greedy episodes (CleanRL publishes 490 for as many). Snake
on a 12 x 12 torus with 4 snakes: a mean length of at least 8 where an untrained snake dies at 3; half of the preset's
steps reach 14 and more.
"""

import pytest


@pytest.mark.parametrize(
    ("params", "measure", "threshold"),
    [
        ({"environment": "cartpole"}, "evalReturn", 475),
        ({"environment": "snake", "environmentSteps": 75_000}, "evalLength", 8),
        ({"environment": "snake", "environmentSteps": 75_000, "policies": "independent"}, "evalLength", 8),
        ({"environment": "bandit"}, "evalReturn", 0.99),
    ],
    ids=["cartpole", "snake", "snake-independent", "bandit"],
)
def test_greedy_episodes_reach_the_threshold_with_every_seed(learn, params, measure, threshold):
    found = learn("vecrl", **params)
    for summary in found:
        assert summary[measure] >= threshold, found
        assert summary["evalUntrained"] < threshold, found
        assert summary["episodes"] > 100, found
