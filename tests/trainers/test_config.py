"""The config of a trainer: every mistake is named with its field, its value and the fix."""

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from torchyard_trainers import registry
from torchyard_trainers.core.config import Parallelism, load
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.cvrp import params

COMMITTED = Path(__file__).parents[2] / "operator" / "torchyard" / "api" / "params"


def read(tmp_path, tree):
    file = tmp_path / "config.json"
    file.write_text(tree if isinstance(tree, str) else json.dumps(tree))
    config = load(file)
    registry.check(config)
    return params.resolve_params(config.trainer.params, config.parallelism)


CVRP = {"name": "cvrp"}


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ("{", "not valid JSON"),
        ({}, "config: object missing required field `trainer`"),
        ({"trainer": CVRP, "chekpoint": {}}, "unknown field `chekpoint`; did you mean checkpoint?"),
        ({"trainer": CVRP, "device": "mps"}, "device: 'mps' is not known; use auto, cpu, cuda"),
        ({"trainer": CVRP, "checkpoint": {"keepLast": 0}}, "checkpoint.keepLast: expected `int` >= 1 (is 0)"),
        ({"trainer": CVRP, "checkpoint": {"interval": {"steps": 1, "seconds": 2}}}, "exactly one of steps and seconds"),
        ({"trainer": CVRP, "checkpoint": {"interval": {}}}, "exactly one of steps and seconds"),
        (
            {"trainer": CVRP, "parallelism": {"strategy": "dpp"}},
            "parallelism.strategy: 'dpp' is not known; did you mean ddp?",
        ),
        ({"trainer": CVRP, "parallelism": {"microBatchSize": "big"}}, "parallelism.microBatchSize"),
        (
            {"trainer": CVRP, "parallelism": {"activationCheckpointing": "half"}},
            "activationCheckpointing: 'half' is not known",
        ),
        (
            {"trainer": CVRP, "parallelism": {"dynamicShapes": True, "deterministic": False}},
            "parallelism.dynamicShapes: true, but nothing is compiled",
        ),
        (
            {"trainer": CVRP, "parallelism": {"dynamicShapes": True, "compile": True}},
            "set deterministic: false too, or remove it",
        ),
        ({"trainer": CVRP, "health": {"nonFinite": "ignore"}}, "'ignore' is not known; use fail, rollback, skip"),
        ({"trainer": {"name": "crvp"}}, "trainer.name: 'crvp' is unknown; use cvrp"),
        ({"trainer": {"name": "cvrp", "mode": "bnch"}}, "trainer.mode: 'bnch' is unknown; use one of train"),
        ({"trainer": {"name": "cvrp", "params": {"custmers": 5}}}, "unknown field `custmers`; did you mean customers?"),
        ({"trainer": {"name": "cvrp", "params": {"lr": -1}}}, "trainer.params.lr: expected `float` > 0.0 (is -1)"),
        (
            {"trainer": {"name": "cvrp", "params": {"steps": "9"}}},
            "trainer.params.steps: expected `int | null`, got `str`",
        ),
        ({"trainer": {"name": "cvrp", "params": {"heads": 5}}}, "embedding: 64 is not a multiple of heads (5)"),
        ({"trainer": {"name": "cvrp", "params": {"samples": 1}}}, "shared compares at least 2"),
        ({"trainer": CVRP, "schema": 2}, "schema"),
    ],
)
def test_a_mistake_is_named(tmp_path, tree, message):
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, tree)
    assert message in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nothing\.json: No such file"):
        load(tmp_path / "nothing.json")


def test_the_smallest_config_is_the_tiny_preset(tmp_path):
    settings = read(tmp_path, {"trainer": CVRP})
    assert (settings.customers, settings.capacity, settings.model, settings.baseline) == (10, 20, "am", "shared")


def test_given_parameters_win_over_the_preset_and_the_global_batch_over_both(tmp_path):
    tree = {
        "trainer": {"name": "cvrp", "params": {"preset": "cvrp50", "lr": 0.5, "batch": 3}},
        "parallelism": {"globalBatchSize": 48},
    }
    settings = read(tmp_path, tree)
    assert (settings.customers, settings.lr, settings.batch) == (50, 0.5, 48)


@pytest.mark.parametrize("preset", params.PRESETS)
@pytest.mark.parametrize("baseline", ["shared", "rollout"])
def test_every_preset_is_complete(preset, baseline):
    settings = params.resolve_params({"preset": preset, "baseline": baseline}, Parallelism())
    assert settings.samples >= (2 if baseline == "shared" else 1)
    assert preset == "tiny" or baseline == "shared" or settings.samples == 1


def printed_schema():
    command = [sys.executable, "-X", "importtime", "-m", "torchyard_trainers", "schema", "cvrp"]
    return subprocess.run(command, capture_output=True, text=True, check=True)


def test_the_committed_schema_is_what_the_trainer_prints_and_torch_is_not_needed_for_it():
    done = printed_schema()
    assert done.stdout == (COMMITTED / "cvrp.json").read_text()
    assert "| torch" not in done.stderr.replace("torchyard", "")


@pytest.mark.parametrize(
    "given", [{}, {"preset": "cvrp20"}, {"lr": 0.1}, {"lr": 0}, {"steps": 0}, {"x": 1}, {"model": "gat"}, {"seed": 1.5}]
)
def test_the_schema_accepts_exactly_what_the_trainer_accepts(given):
    schema = json.loads((COMMITTED / "cvrp.json").read_text())
    by_schema = jsonschema.Draft202012Validator(schema).is_valid(given)
    try:
        params.resolve_params(given, Parallelism())
        by_trainer = True
    except ConfigError:
        by_trainer = False
    assert by_schema == by_trainer


def test_every_parameter_has_a_description():
    schema = json.loads((COMMITTED / "cvrp.json").read_text())
    for name, field in schema["$defs"]["Params"]["properties"].items():
        assert field.get("description", "").endswith("."), name
