"""A workload that lies outside of the package trains like one of its own, in every mode."""

import json
import signal

import char_lm
import pytest
import torch
from tests.support.trainers.gangs import until

from torchyard_trainers import registry
from torchyard_trainers.core.config import Config, Trainer
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.memory.plan import plan


def config(mode="train", **sections):
    sections.setdefault("parallelism", {"precision": "fp32"})
    trainer = {"name": "char_lm:CharLm", "mode": mode, "params": sections.pop("params", {})}
    return {"trainer": trainer, "device": "cpu", "logging": {"tensorboard": False}, **sections}


@pytest.mark.e2e
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_every_strategy_learns_the_same_and_tied_weights_are_saved(yard, calm, strategy):
    calm.train(config(), 1)
    yard.train(config(parallelism={"strategy": strategy, "precision": "fp32"}), 2)
    assert yard.losses() == pytest.approx(calm.losses(), abs=1e-5)
    assert yard.metrics()[-1]["evalLoss"] == pytest.approx(calm.metrics()[-1]["evalLoss"], abs=1e-5)
    assert yard.metrics()[-1]["evalLoss"] < yard.metrics()[3]["evalLoss"]
    assert (yard.checkpoints / "final" / "model.safetensors").exists()


@pytest.mark.e2e
def test_a_run_is_bit_identical_after_a_kill(yard, calm):
    given = config(params={"steps": 400}, checkpoint={"interval": {"steps": 5}})
    calm.train(given, 2)
    gang = yard.start(given, 2)
    until(yard.committed)
    gang.kill()
    assert gang.wait() == [-signal.SIGKILL] * 2
    yard.train(given, 2)
    assert yard.weights() == calm.weights()


@pytest.mark.e2e
@pytest.mark.parametrize("mode", ["eval", "bench", "export"])
def test_a_custom_workload_has_all_modes_without_more_code(yard, mode):
    yard.train(config(), 1)
    yard.train(config(mode), 1)
    assert yard.report()["metrics"]


def test_the_memory_of_a_custom_workload_is_planned_with_data_that_was_read_before(monkeypatch):
    """A tensor of real numbers at the top of a module, which a step of shapes looks things up in."""
    corpus = torch.zeros(100, char_lm.LENGTH, dtype=torch.int64)
    monkeypatch.setattr(char_lm, "_surprise", lambda model, ids, _: model(corpus[ids % 100]).mean((1, 2)))
    found = json.loads(plan(Config(trainer=Trainer(name="char_lm:CharLm")), ranks=2, local=2, memory=2**32))
    assert (found["how"], found["job"]["fits"]) == ("a step of shapes", True)


def test_the_memory_of_a_custom_workload_is_planned():
    found = json.loads(plan(Config(trainer=Trainer(name="char_lm:CharLm")), ranks=2, local=2, memory=2**32))
    assert (found["how"], found["job"]["fits"]) == ("a step of shapes", True)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere:CharLm", "there is no module 'nowhere'; set workingDir to its folder"),
        ("char_lm:Missing", "char_lm has no Missing; it needs the class and resolve_params"),
        ("forecasts:make", "forecasts has no resolve_params; it needs"),
        ("char_lm:Model", "has no build, learning_rate, loss; see"),
        ("char_lm", "'char_lm' is unknown; use cvrp, vecrl, lm, vla, vlm, or MODULE:CLASS for a workload of your own"),
    ],
)
def test_a_name_that_is_no_workload_is_refused_in_a_sentence(name, says):
    with pytest.raises(ConfigError, match=r"^trainer\.name: ") as refused:
        registry.build(Config(trainer=Trainer(name=name)))
    assert says in str(refused.value)
