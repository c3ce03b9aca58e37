"""Faults of a step, by policy."""

import pytest

from torchyard_trainers.core.exits import DivergedError
from torchyard_trainers.core.health.guard import Guard

NAN = "loss nan, gradient norm nan"


@pytest.mark.parametrize("policy", ["fail", "skip", "rollback"])
def test_a_step_with_finite_loss_and_gradient_continues(policy):
    guard = Guard(policy)
    assert not guard.rolls_back(1, "")
    assert guard.metrics == {}


def test_fail_ends_the_run_with_step_value_and_fix():
    with pytest.raises(DivergedError, match=r"step 7: loss nan, gradient norm nan; lower params\.lr"):
        Guard("fail").rolls_back(7, NAN)


def test_skip_counts_the_steps_it_leaves_out_and_ends_the_run_after_ten_in_a_row():
    guard = Guard("skip")
    for step in range(1, 10):
        assert not guard.rolls_back(step, NAN)
    assert not guard.rolls_back(10, "")
    for step in range(11, 20):
        assert not guard.rolls_back(step, NAN)
    assert guard.metrics == {"skippedSteps": 18.0}
    with pytest.raises(DivergedError, match="10 steps in a row"):
        guard.rolls_back(20, NAN)


def test_rollback_repeats_each_step_once():
    guard = Guard("rollback")
    assert guard.rolls_back(8, NAN)
    assert not guard.rolls_back(8, "")
    assert guard.rolls_back(20, NAN)
    with pytest.raises(DivergedError, match="again after going back from step 20"):
        guard.rolls_back(20, NAN)
