"""Which losses and gradient norms are spikes."""

import math
import random

import pytest

from torchyard_trainers.core.health.detector import FEWEST, Detector


def trained(*, loss=lambda step, noise: 3.0 * 0.99**step + 0.05 * noise, steps=100, seed=0):
    """Return a detector after steps of a run, none of which is a spike."""
    chance, detector = random.Random(seed), Detector()
    for step in range(steps):
        values = loss(step, chance.gauss(0, 1)), math.exp(0.4 * chance.gauss(0, 1))
        assert detector.spike(*values) == "", (step, values)
        detector.note(*values)
    return detector


@pytest.mark.parametrize(
    "loss",
    [
        lambda step, noise: 3.0 * 0.99**step + 0.05 * noise,
        lambda step, noise: 3.0 * 1.01**step + 0.05 * noise,  # rewards change what is learned from
        lambda step, noise: 0.02 * noise,  # of a policy
        lambda step, noise: -5.0 - 0.1 * step + noise,
        lambda step, noise: 0.1,
        lambda step, noise: math.exp(noise),
    ],
)
def test_noise_and_trends_are_no_spikes(loss):
    for seed in range(20):
        trained(loss=loss, steps=300, seed=seed)


def test_a_spike_is_named_with_its_figures():
    assert trained().spike(9.0, 1.0).startswith("loss 9 is ")
    assert trained().spike(9.0, 1.0).endswith(" of 64 steps")
    assert trained().spike(1.0, 400.0).startswith("gradient norm 400 is ")


def test_the_first_steps_are_compared_with_nothing():
    assert trained(steps=FEWEST - 1).spike(1e9, 1e9) == ""


def test_a_resumed_run_finds_the_same():
    detector, other = trained(), Detector()
    other.load(detector.state())
    for step in range(20):
        values = 1.0 + 0.01 * step, 1.0
        detector.note(*values)
        other.note(*values)
        assert detector.state() == other.state()
