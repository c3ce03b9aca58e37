"""The goals of the presets `tiny`, and drawn seeds: for the learning tests and `benchmarks/seeds.py`."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

SEEDS = 2**31


class Goal(NamedTuple):
    """A run of preset `tiny`, and bounds of the metrics in its summary."""

    trainer: str
    params: Mapping[str, Any]
    least: Mapping[str, float]
    below: Mapping[str, float] = {}

    def misses(self, summary: Mapping[str, Any]) -> list[str]:
        """Return a text for each bound that a summary misses; [] if the run has learned what it must."""
        low = [f"{name} {summary[name]:.3f} < {least}" for name, least in self.least.items() if summary[name] < least]
        high = [f"{name} {summary[name]:.3f} >= {most}" for name, most in self.below.items() if summary[name] >= most]
        return low + high


# Of 150,000 environment steps a half reaches a length of 14 and more; an untrained snake dies at 3.
_SNAKE = {"environment": "snake", "environmentSteps": 75_000}
# Of 20 customers, every start in training is worth another half per cent.
_STARTS = {"starts": "customers", "samples": 20, "batch": 32}
TWENTY_CUSTOMERS = {"customers": 20, "capacity": 30, "steps": 600, **_STARTS}
GOALS = {
    "lm-sft": Goal("lm", {}, {"exactMatch": 0.95}, {"exactMatchUntrained": 0.05}),
    "lm-grpo": Goal("lm", {"method": "grpo"}, {"exactMatch": 0.95}),
    "lm-ppo": Goal("lm", {"method": "ppo"}, {"exactMatch": 0.95}),
    "lm-dpo": Goal(
        "lm", {"method": "dpo"}, {"preferenceAccuracy": 0.95, "rewardAccuracy": 0.95, "rewardMargin": 0.001}
    ),
    # The best of all starts and symmetries is shorter than savings.
    "cvrp": Goal("cvrp", {}, {}, {"gapSavingsPercent": 0.0}),
    "cvrp-20": Goal("cvrp", TWENTY_CUSTOMERS, {}, {"gapSavingsPercent": 0.0}),
    # CleanRL publishes 490 after as many steps.
    "vecrl-cartpole": Goal("vecrl", {"environment": "cartpole"}, {"evalReturn": 475}, {"evalUntrained": 475}),
    "vecrl-snake": Goal("vecrl", _SNAKE, {"evalLength": 8}, {"evalUntrained": 8}),
    "vecrl-snake-independent": Goal(
        "vecrl", {**_SNAKE, "policies": "independent"}, {"evalLength": 8}, {"evalUntrained": 8}
    ),
    # Swings up and stays there: five drawn seeds reached -185 to -191.
    "vecrl-pendulum": Goal("vecrl", {"environment": "Pendulum-v1"}, {"evalReturn": -250}, {"evalUntrained": -900}),
    # CleanRL publishes 963 of 1,000 after 1,000,000 steps.
    "vecrl-mujoco": Goal(
        "vecrl",
        {"preset": "continuous", "environment": "InvertedPendulum-v5", "environmentSteps": 51_200},
        {"evalReturn": 900},
        {"evalUntrained": 100},
    ),
    "vecrl-bandit": Goal("vecrl", {"environment": "bandit"}, {"evalReturn": 0.99}, {"evalUntrained": 0.99}),
    # 950 of the 1400 steps of the preset are enough.
    "vla": Goal(
        "vla",
        {"steps": 950},
        {"successRate": 0.85},
        {"successRateUntrained": 0.2, "flowLoss": 0.2, "wrongObjectRate": 0.1},
    ),
    # With one object on the table there is nothing to choose, and a third of the steps are enough.
    "vla-act": Goal(
        "vla",
        {"model": "tiny-paligemma", "head": "act", "objects": 1, "steps": 550},
        {"successRate": 0.85},
        {"successRateUntrained": 0.2, "actLoss": 0.15},
    ),
    # A policy that acts at random reaches the can in a fifth of the episodes.
    "vlm": Goal("vlm", {}, {"successRate": 0.85}, {"successRateUntrained": 0.35}),
}


def drawn_seeds(text: str, count: int) -> list[int]:
    """Return seeds that follow from a text, such as a date: the first digits of SHA-256 of `TEXT-0`, `TEXT-1`, ..."""
    digests = (hashlib.sha256(f"{text}-{number}".encode()).hexdigest() for number in range(count))
    return [int(digest[:8], 16) % SEEDS for digest in digests]


def write_config(folder: Path, trainer: str, params: Mapping[str, Any], seed: int) -> None:
    """Write the `config.json` of a run, evaluated before and after training only unless the parameters differ."""
    folder.mkdir()
    values = {"logEvery": 100, "evalEvery": 10**6, **params, "seed": seed}
    (folder / "config.json").write_text(json.dumps({"trainer": {"name": trainer, "params": values}, "device": "cpu"}))


def summary_of(folder: Path) -> dict[str, Any]:
    """Return the summary of a run in this folder, with its `seed` and `curve`."""
    checkpoints = folder / "checkpoints"
    seed = json.loads((folder / "config.json").read_text())["trainer"]["params"]["seed"]
    curve = [json.loads(line) for line in (checkpoints / "metrics.jsonl").read_text().splitlines()]
    return {**json.loads((checkpoints / "final" / "summary.json").read_text()), "seed": seed, "curve": curve}
