"""What the operator writes, the trainer reads: the resolved config of every example and preset."""

from pathlib import Path

import msgspec
import pytest
import yaml

from torchyard.api import launch
from torchyard.api.resource import read_job
from torchyard_trainers import registry
from torchyard_trainers.core.config import Config, load
from torchyard_trainers.cvrp import params

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("cvrp*.yaml"))


def as_the_trainer_reads(tmp_path, document) -> Config:
    file = tmp_path / "config.json"
    file.write_bytes(msgspec.json.encode(launch.trainer_config(read_job(document), str)))
    config = load(file)
    registry.check(config)
    return config


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_understood(tmp_path, example):
    document = yaml.safe_load(example.read_text())
    config = as_the_trainer_reads(tmp_path, document)
    settings = params.resolve_params(config.trainer.params, config.parallelism)
    for name, value in document["spec"]["trainer"]["params"].items():
        assert name == "preset" or getattr(settings, name) == value


def test_every_section_of_the_spec_arrives(tmp_path):
    spec = {
        "trainer": {"name": "cvrp", "mode": "eval", "params": {"lr": 0.01}},
        "device": "cpu",
        "parallelism": {"strategy": "fsdp", "precision": "bf16", "globalBatchSize": 48, "microBatchSize": 8},
        "checkpoint": {"interval": {"seconds": 90}, "keepLast": 5},
        "logging": {"tensorboard": False},
    }
    document = {"apiVersion": "torchyard.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "x"}, "spec": spec}
    config = as_the_trainer_reads(tmp_path, document)
    assert (config.trainer.mode, config.device, config.logging.tensorboard) == ("eval", "cpu", False)
    assert (config.parallelism.strategy, config.parallelism.precision) == ("fsdp", "bf16")
    assert (config.parallelism.global_batch_size, config.parallelism.micro_batch_size) == (48, 8)
    assert config.checkpoint.interval.seconds == 90
    assert config.checkpoint.keep_last == 5
