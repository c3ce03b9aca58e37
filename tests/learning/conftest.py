"""Train workloads with given seeds, side by side, one process of one thread each; every one of them must learn."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SEEDS = range(1, int(os.environ.get("SEEDS", "1")) + 1)


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.learning)


@pytest.fixture
def learn(tmp_path):
    """Train a workload with every seed at once; return what each learned, with its `curve`."""

    def train(name, **params):
        learners = []
        for seed in SEEDS:
            folder = tmp_path / f"seed-{seed}"
            folder.mkdir()
            trainer = {"name": name, "params": {"logEvery": 100, **params, "seed": seed}}
            (folder / "config.json").write_text(json.dumps({"trainer": trainer, "device": "cpu"}))
            command = [sys.executable, "-m", "torchyard_trainers", "--config", "config.json"]
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            with (folder / "log").open("w") as log:
                learners.append(subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=environment))
        try:  # a bound on hangs: beside much other work, a minute of a core may take half an hour
            codes = [learner.wait(timeout=7200) for learner in learners]
        finally:
            for learner in learners:
                learner.kill()
        logs = [(tmp_path / f"seed-{seed}" / "log").read_text() for seed in SEEDS]
        assert codes == [0] * len(SEEDS), logs
        return [_learned(tmp_path / f"seed-{seed}" / "checkpoints") for seed in SEEDS]

    return train


def _learned(checkpoints):
    curve = [json.loads(line) for line in (checkpoints / "metrics.jsonl").read_text().splitlines()]
    return {**json.loads((checkpoints / "final" / "summary.json").read_text()), "curve": curve}
