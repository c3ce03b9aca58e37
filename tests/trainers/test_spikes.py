"""A spike of one step: data and hardware are distinguished by repeating the steps, and it never reaches the weights."""

import pytest
from tests.support.trainers.gangs import Yard, config

pytestmark = pytest.mark.e2e

STEPS, BATCH, BAD_STEP = 50, 12, 44
SAMPLE = (BAD_STEP - 1) * BATCH + BATCH - 1  # the last one of the step


def settings(spikes="rollback", *, interval=20, **health):
    return config(
        params={"steps": STEPS, "batch": BATCH},
        health={"spikes": spikes, **health},
        checkpoint={"interval": {"steps": interval}},
    )


def warnings(yard):
    return " | ".join(yard.report()["warnings"])


def test_what_comes_again_is_left_out_as_data(yard):
    yard.train(settings(), 2, function=("faults:train_with_spike", [SAMPLE, 100]))
    entries = {entry["step"]: entry for entry in yard.metrics()}
    assert next(step for step, entry in entries.items() if entry.get("skippedSteps")) == BAD_STEP
    assert "it came again, with the same bits and as other ranks compute it" in warnings(yard)


def test_what_does_not_come_again_was_the_hardware_and_leaves_no_trace(yard, fork_server, tmp_path):
    (tmp_path / "calm").mkdir()
    calm = Yard(fork_server, tmp_path / "calm")
    calm.train(settings(), 1)
    yard.train(settings(), 1, function=("faults:train_with_spike", [SAMPLE, 1]))
    assert yard.weights() == calm.weights()
    assert "it did not come again: the hardware" in warnings(yard)
    assert "rolled back to step 40" in warnings(yard)


def test_a_loss_that_is_not_a_number_is_a_spike_too(yard):
    yard.train(settings(), 1, function=("faults:train_with_nan", [SAMPLE, 100]))
    assert yard.metrics()[-1]["skippedSteps"] == 1


def test_a_rank_that_computes_otherwise_than_others_is_named(yard):
    gang = yard.start(settings(), 2, function=("faults:train_with_spike", [SAMPLE, 1, 1]))
    assert sorted(gang.wait()) == [68, 76], gang.output()
    assert yard.failure(1)["message"].startswith(f"step {BAD_STEP}: ")
    assert "rank 1 on " in yard.failure(1)["message"]
    assert "computed two losses from the same weights and samples" in yard.failure(1)["message"]


def test_a_flipped_bit_is_found_within_five_steps_and_reaches_no_checkpoint(yard):
    gang = yard.start(settings(), 3, function=("faults:train_with_flipped_bit", [2, 30, 3]))
    assert sorted(gang.wait()) == [68, 76, 76], gang.output()
    assert "the weights of rank 2 on " in yard.failure(2)["message"]
    assert int(yard.failure(2)["message"].split(":")[0].removeprefix("step ")) <= 30 + 6
    assert yard.committed() == [20]


def test_by_default_a_spike_is_a_warning_and_its_update_is_made(yard):
    yard.train(settings("warn"), 1, function=("faults:train_with_spike", [SAMPLE, 1]))
    assert "skippedSteps" not in yard.metrics()[-1]
    assert "robust deviations above the median" in warnings(yard)
