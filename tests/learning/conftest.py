"""Train workloads with given seeds, side by side, one process of one thread each; every one of them must learn.

The first seed is 1. SEEDS=3 adds two that are drawn from the date, or from DRAW, so that none is a favourite; a failure
prints the seed of each run. Their processes are forked from one that has imported all workloads.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.support.learning import GOALS, drawn_seeds, summary_of, write_config
from tests.support.warm_commands import WarmCommands

from torchyard_agent.workers.environment import KEEP_MEMORY

HERE = Path(__file__).parent
LEARNERS = WarmCommands("workloads")
DRAW = os.environ.get("DRAW", datetime.now(UTC).date().isoformat())
SEEDS = [1, *drawn_seeds(DRAW, int(os.environ.get("SEEDS", "1")) - 1)]


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.learning)


@pytest.fixture
def learn(tmp_path):
    """Train a workload with every seed at once; return what each learned, with its `seed` and `curve`."""

    def train(name, **params):
        folders = [tmp_path / f"seed-{seed}" for seed in SEEDS]
        for seed, folder in zip(SEEDS, folders, strict=True):
            write_config(folder, name, params, seed)
        with ThreadPoolExecutor(len(SEEDS)) as pool:
            learners = list(pool.map(run_trainer, folders))
        assert [each.returncode for each in learners] == [0] * len(SEEDS), learners
        return [summary_of(folder) for folder in folders]

    return train


@pytest.fixture
def reach(learn):
    """Train for a goal with every seed, and assert that each reaches it; return what each learned."""

    def train(name, **params):
        goal = GOALS[name]
        summaries = learn(goal.trainer, **goal.params, **params)
        misses = {summary["seed"]: goal.misses(summary) for summary in summaries}
        assert not any(misses.values()), (misses, summaries)
        return summaries

    return train


def run_trainer(folder):
    """Train in a folder. The limit only ends hangs: on a busy machine, a minute of a core may take half an hour."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **KEEP_MEMORY}  # as the agent starts workers on a CPU
    return LEARNERS.run(["--config", "config.json"], folder, environment, timeout=7200)
