"""CartPole and Snake are really learned: three seeds, one CPU process each, the published thresholds.

CartPole: 500,000 steps, then at least 475 of 500 over 100 greedy episodes (CleanRL publishes 490 for as many). Snake
on a 12 x 12 torus with 4 snakes: a mean length of at least 8 where an untrained snake dies at 3.
"""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.learning

SEEDS = (1, 2, 3)


@pytest.mark.parametrize(
    ("params", "measure", "threshold"),
    [
        ({"environment": "cartpole"}, "evalReturn", 475),
        ({"environment": "snake"}, "evalLength", 8),
        ({"environment": "snake", "policies": "independent"}, "evalLength", 8),
        ({"environment": "bandit"}, "evalReturn", 0.99),
    ],
    ids=["cartpole", "snake", "snake-independent", "bandit"],
)
def test_greedy_episodes_reach_the_threshold_with_every_seed(tmp_path, params, measure, threshold):
    learners = []
    for seed in SEEDS:
        folder = tmp_path / f"seed-{seed}"
        folder.mkdir()
        trainer = {"name": "vecrl", "params": params | {"seed": seed, "logEvery": 200}}
        (folder / "config.json").write_text(json.dumps({"trainer": trainer, "device": "cpu"}))
        command = [sys.executable, "-m", "torchyard_trainers", "--config", "config.json"]
        with (folder / "log").open("w") as log:
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            learners.append(subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=environment))
    codes = [learner.wait(timeout=600) for learner in learners]
    logs = [(tmp_path / f"seed-{seed}" / "log").read_text() for seed in SEEDS]
    assert codes == [0, 0, 0], logs
    finals = [tmp_path / f"seed-{seed}" / "checkpoints" / "final" / "summary.json" for seed in SEEDS]
    summaries = [json.loads(final.read_text()) for final in finals]
    for summary in summaries:
        assert summary[measure] >= threshold, summaries
        assert summary["evalUntrained"] < threshold, summaries
        assert summary["episodes"] > 100, summaries
