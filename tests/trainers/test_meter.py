"""Figures of use: counted FLOPs against arithmetic by hand, peaks by name, shares of time."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.metrics import meter
from torchyard_trainers.core.metrics.flops import flops_of_sample
from torchyard_trainers.core.metrics.meter import Meter, utilisation
from torchyard_trainers.core.metrics.peaks import peak_of
from torchyard_trainers.core.parallel import parallelize
from torchyard_trainers.core.precision import Precision
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.workload import LossOutput, Session, Workload
from torchyard_trainers.core.world import World

WIDTH, BLOCKS, BATCH = 32, 3, 16


class Perceptron(Workload):
    """The smallest thing with a loss."""

    total_steps, global_batch = 10, BATCH

    def build(self):
        torch.manual_seed(1)
        linear = partial(nn.Linear, WIDTH, WIDTH, bias=False)
        return nn.Sequential(*(nn.Sequential(linear(), nn.Tanh(), linear()) for _ in range(BLOCKS)))

    def loss(self, session, batch):
        found = session.parallel.forward(torch.ones(len(batch.ids), WIDTH)).square().sum(-1)
        return LossOutput((found * batch.weights).sum(), {})


def session(**settings):
    world = World(rank=0, size=1, local_rank=0, device=torch.device("cpu"), grouped=False)
    precision = Precision("fp32", world.device, sharded=False)
    model = Perceptron().build()
    parallel = parallelize(
        model, list(model), "single", settings=Parallelism(**settings), precision=precision, world=world
    )
    return Session(parallel, precision, world, Reporter(None, rank=0, local_rank=0, round_number=1), None)


@pytest.mark.parametrize("recomputed", ["none", "selective", "full"])
def test_flops_are_those_of_the_products_and_none_of_what_is_computed_again(recomputed):
    # Forward 2 w^2 a layer; backward the same for its weights, and for its input in every layer but the first.
    layers = 2 * BLOCKS
    by_hand = 2 * WIDTH**2 * (layers + layers + (layers - 1))
    held = session(activation_checkpointing=recomputed)
    assert flops_of_sample(Perceptron(), held, 0) == by_hand
    assert all(parameter.grad is None for parameter in held.parallel.module.parameters())


def test_mfu_is_what_was_achieved_over_what_is_possible(monkeypatch):
    monkeypatch.setattr(meter, "device_peak", lambda _session: 1e6)
    found = Meter(Perceptron(), session(), 0)
    found.tick(10.0, {})
    pace = found.tick(12.0, {"tokens": 8.0})
    assert pace == {
        "stepsPerSecond": 0.5,
        "samplesPerSecond": 0.5 * BATCH,
        "tokensPerSecond": 0.5 * BATCH * 8,
        "mfu": pytest.approx(found.flops * 0.5 * BATCH / 1e6),
    }
    assert utilisation(6e9 * 1000, 100, 989.4e12, 8) == pytest.approx(6e14 / 7.9152e15)


def test_an_unknown_device_has_no_mfu_and_costs_no_count():
    found = Meter(Perceptron(), session(), 0)
    assert found.flops is None
    found.tick(1.0, {})
    assert "mfu" not in found.tick(2.0, {})


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4e12),
        ("NVIDIA H100 80GB HBM3", "fp32", 66.9e12),
        ("NVIDIA H100 PCIe", "bf16", 756e12),
        ("NVIDIA H200", "fp16", 989.4e12),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312e12),
        ("Tesla T4", "fp16", 65e12),
        ("NVIDIA L4", "bf16", 121e12),
        ("NVIDIA L40S", "bf16", 362e12),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bf16", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16", None),
        ("NVIDIA GH200 480GB MIG 1g.12gb", "bf16", None),
        ("NVIDIA A10G", "bf16", None),
        ("AMD Instinct MI300X", "bf16", None),
        ("cpu", "fp32", None),
    ],
)
def test_peaks_are_known_by_exact_names(name, precision, peak):
    assert peak_of(name, precision) == (peak and pytest.approx(peak))


class Ranks(World):
    """One of several, whose devices are known to have these peaks."""

    peaks = (None,)

    def gather(self, _value):
        return list(self.peaks)


@pytest.mark.parametrize(("peaks", "mean"), [((4e12, None), None), ((None, 4e12), None), ((4e12, 2e12), 3e12)])
def test_ranks_with_different_devices_agree_on_whether_flops_are_counted(peaks, mean, monkeypatch):
    world = Ranks(rank=0, size=2, local_rank=0, device=torch.device("cpu"), grouped=False)
    monkeypatch.setattr(Ranks, "peaks", peaks)
    monkeypatch.setattr(meter, "own_peak", lambda _session: peaks[0])
    held = replace(session(), world=world)
    assert meter.device_peak(held) == mean
    assert (Meter(Perceptron(), held, 0).flops is not None) is (mean is not None)


def test_the_share_of_time_that_steps_waited_for_data(monkeypatch):
    held = session()
    clock = iter([100.0, 110.0, 120.0, 125.0])
    monkeypatch.setattr(meter.time, "monotonic", lambda: next(clock))
    held.data_wait.seconds += 50.0
    found = Meter(Perceptron(), held, 0)
    assert "dataWaitShare" not in found.metrics()
    held.data_wait.seconds += 2.5
    assert found.metrics()["dataWaitShare"] == 0.125
    assert found.metrics()["dataWaitShare"] == 0.1
