"""Train workloads with given seeds, side by side, one process of one thread each; every one of them must learn.

Their processes are forked from one that has imported all workloads.
"""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support.warm_commands import WarmCommands

from torchyard_agent.workers.environment import KEEP_MEMORY

HERE = Path(__file__).parent
LEARNERS = WarmCommands("workloads")
SEEDS = range(1, int(os.environ.get("SEEDS", "1")) + 1)


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.learning)


@pytest.fixture
def learn(tmp_path):
    """Train a workload with every seed at once; return what each learned, with its `curve`.

    It is evaluated before and after training only, unless the test asks for more.
    """

    def train(name, **params):
        folders = [tmp_path / f"seed-{seed}" for seed in SEEDS]
        for seed, folder in zip(SEEDS, folders, strict=True):
            folder.mkdir()
            trainer = {"name": name, "params": {"logEvery": 100, "evalEvery": 10**6, **params, "seed": seed}}
            (folder / "config.json").write_text(json.dumps({"trainer": trainer, "device": "cpu"}))
        with ThreadPoolExecutor(len(SEEDS)) as pool:
            learners = list(pool.map(run_trainer, folders))
        assert [each.returncode for each in learners] == [0] * len(SEEDS), learners
        return [_learned(folder / "checkpoints") for folder in folders]

    return train


def run_trainer(folder):
    """Train in a folder. The limit only ends hangs: on a busy machine, a minute of a core may take half an hour."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **KEEP_MEMORY}  # as the agent starts workers on a CPU
    return LEARNERS.run(["--config", "config.json"], folder, environment, timeout=7200)


def _learned(checkpoints):
    curve = [json.loads(line) for line in (checkpoints / "metrics.jsonl").read_text().splitlines()]
    return {**json.loads((checkpoints / "final" / "summary.json").read_text()), "curve": curve}
