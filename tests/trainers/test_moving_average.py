"""The moving average of the weights: what it is, at every world size, after a kill, in evaluation, export and plan."""

import re

import pytest
import torch
from averaged_lm import Averaged
from forecasts import imagined_world
from safetensors.torch import load_file
from tests.support.trainers.gangs import Yard, until

from torchyard_trainers.core.config import Config, Parallelism, Trainer
from torchyard_trainers.core.memory.forecast import GIB
from torchyard_trainers.core.memory.plan import Planner
from torchyard_trainers.core.optimizers import as_one
from torchyard_trainers.core.parallel import parallelize, state_bytes
from torchyard_trainers.core.precision import Precision
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.step import optimize
from torchyard_trainers.core.workload import Session, average_of
from torchyard_trainers.core.world import World

DECAY = 0.6


def settings(steps=6, *, mode="train", decay=DECAY, **sections):
    params = {"steps": steps} | ({} if decay is None else {"decay": decay})
    return {
        "trainer": {"name": "averaged_lm:Averaged", "mode": mode, "params": params},
        "device": "cpu",
        "logging": {"tensorboard": False},
        **sections,
    }


def final(yard):
    return load_file(yard.checkpoints / "final" / "model.safetensors")


@pytest.fixture(scope="module")
def alone(fork_server, tmp_path_factory):
    """A run of one process that was never stopped."""
    yard = Yard(fork_server, tmp_path_factory.mktemp("alone"))
    yard.train(settings())
    return yard


def test_the_average_is_the_sum_of_all_weights_and_no_weight_is_changed():
    work = Averaged({"decay": DECAY, "steps": 12})
    world, precision = (
        World(0, 1, 0, torch.device("cpu"), grouped=False),
        Precision("fp32", torch.device("cpu"), sharded=False),
    )
    model = work.build()
    parallel = parallelize(model, [], "single", settings=Parallelism(), precision=precision, world=world)
    reporter = Reporter(None, rank=0, local_rank=0, round_number=0)
    session = Session(parallel, precision, world, reporter, None, average=average_of(work, parallel))
    optimizer = as_one(work.optimizer(model))
    expected = {name: each.detach().double() for name, each in model.named_parameters()}
    for step in range(12):
        optimize(work, session, optimizer, step, {})
        keeps = min(DECAY, (1 + step) / (10 + step))
        for name, each in model.named_parameters():
            expected[name] = keeps * expected[name] + (1 - keeps) * each.detach().double()
    assert keeps == pytest.approx(12 / 21)  # the decay still rises; the last steps of a long run reach `DECAY`
    before = {name: each.clone() for name, each in model.state_dict().items()}
    with session.averaged():
        for name, each in model.named_parameters():
            assert not torch.equal(each, before[name])
            torch.testing.assert_close(each.detach().double(), expected[name], rtol=1e-6, atol=1e-7)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


@pytest.mark.e2e
@pytest.mark.parametrize(("world", "strategy"), [(2, "ddp"), (2, "fsdp"), (3, "fsdp")])
def test_world_size_and_strategy_are_the_same_average_also_across_a_restart(yard, alone, world, strategy):
    yard.train(settings(3, parallelism={"strategy": strategy}), world)
    yard.train(settings(6, parallelism={"strategy": strategy if world == 3 else "auto"}), world if world == 3 else 1)
    yard.assert_learned(alone.metrics(), {"loss", "gradNorm", "evalLoss"})
    expected = final(alone)
    for name, weight in final(yard).items():
        # A tenth of a step: gradients of the keys' biases are 0 but for rounding, which AdamW makes into steps.
        torch.testing.assert_close(weight, expected[name], rtol=0, atol=1e-4)


@pytest.mark.e2e
@pytest.mark.parametrize(("world", "strategy"), [(1, "single"), (2, "fsdp")])
def test_a_killed_run_ends_with_the_same_bits(yard, calm, world, strategy):
    given = settings(6, parallelism={"strategy": strategy}, checkpoint={"interval": {"steps": 1}})
    calm.train(given, world)
    folder = re.escape(str(yard.checkpoints))
    gang = yard.start(given, world, hold=(0, rf"os.rename {folder}/\.step-00000004\."))
    until(yard.held.exists)
    gang.kill()
    gang.wait()
    yard.train(given, world)
    assert yard.weights() == calm.weights()


@pytest.mark.e2e
def test_the_average_is_what_is_evaluated_and_exported_and_the_weights_remain_for_training(yard, alone):
    plain = Yard(yard.server, yard.root / "plain")
    plain.root.mkdir()
    plain.train(settings(decay=None))
    own, weights = alone.metrics(), plain.metrics()
    assert [line["loss"] for line in own] == [line["loss"] for line in weights]
    assert own[-1]["evalLoss"] != pytest.approx(weights[-1]["evalLoss"], rel=1e-4)

    def evaluated(decay):
        yard.checkpoints = yard.root / f"evaluated-{decay}"
        yard.train(settings(decay=decay, mode="eval", checkpoint={"resumeFrom": str(alone.checkpoints)}), 2)
        return yard.report()["metrics"]["evalLoss"]

    assert evaluated(DECAY) == pytest.approx(own[-1]["evalLoss"], abs=1e-6)
    assert evaluated(None) == pytest.approx(weights[-1]["evalLoss"], abs=1e-6)
    gang = yard.start(settings(mode="eval", checkpoint={"resumeFrom": str(plain.checkpoints)}))
    assert gang.wait() == [67]
    assert "holds no moving average of the weights, which this job asks for; leave that out" in gang.output()
    plain.rounds += 1
    gang = plain.start(settings(7))
    assert gang.wait() == [65]
    assert f"decay of the moving average is {DECAY} but was None" in gang.output()


@pytest.mark.parametrize(("strategy", "ranks"), [("single", 1), ("fsdp", 4)])
def test_a_plan_and_the_choice_of_a_strategy_count_it_once_and_not_as_optimizer_state(monkeypatch, strategy, ranks):
    def usage(decay):
        work = Averaged({"decay": decay} if decay else {})
        monkeypatch.setattr("torchyard_trainers.registry.build", lambda _: work)
        config = Config(trainer=Trainer(name="averaged"), parallelism=Parallelism(strategy=strategy))
        with imagined_world(ranks, ranks) as world:
            return Planner(config, world, 80 * GIB).as_asked().usage

    without, with_average = usage(None), usage(DECAY)
    assert (with_average.average, without.average) == (without.parameters, 0)
    assert with_average.optimizer == without.optimizer
    assert with_average.total == without.total + without.parameters
    model = Averaged({}).build()
    weights = sum(each.numel() for each in model.parameters())
    assert state_bytes(model, averaged=True) == state_bytes(model) + 4 * weights
