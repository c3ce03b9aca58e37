"""One rank's loss is not a number: every rank does the same about it, and it never reaches the weights."""

import pytest
from tests.support.trainers.gangs import Yard, config

pytestmark = pytest.mark.e2e

STEPS, BATCH = 12, 12
BAD_STEP = 8


def settings(policy, *, interval=3):
    return config(
        params={"steps": STEPS, "batch": BATCH},
        health={"nonFinite": policy},
        checkpoint={"interval": {"steps": interval}},
    )


def nan_once(times=1):
    """A loss that breaks on the rank which holds the last sample of a step, and on no other."""
    return ("faults:train_with_nan", [(BAD_STEP - 1) * BATCH + BATCH - 1, times])


def test_rollback_cures_what_does_not_come_again_bit_for_bit(yard, fork_server, tmp_path):
    (tmp_path / "calm").mkdir()
    calm = Yard(fork_server, tmp_path / "calm")
    calm.train(settings("rollback"), 2)
    yard.train(settings("rollback"), 2, function=nan_once())
    assert yard.weights() == calm.weights()
    steps = [entry["step"] for entry in yard.metrics()]
    assert steps == [*range(1, 8), 7, 8, 9, 10, 11, 12], "back to the checkpoint of step 6"


def test_rollback_ends_with_66_on_every_rank_when_the_same_comes_again(yard):
    gang = yard.start(settings("rollback"), 2, function=nan_once(100))
    assert gang.wait() == [66, 66], gang.output()
    assert "step 8: loss nan" in yard.failure(1)["message"]
    assert "again after going back from step 8" in yard.failure(1)["message"]
    assert yard.committed() == [3, 6]


def test_rollback_without_a_checkpoint_ends_with_66(yard):
    gang = yard.start(settings("rollback", interval=100), function=nan_once())
    assert gang.wait() == [66]
    assert "before any checkpoint to roll back to" in yard.failure()["message"]


@pytest.mark.parametrize("world", [1, 2])
def test_skip_omits_the_update_and_continues(yard, world):
    yard.train(settings("skip"), world, function=nan_once(100))
    entries = {entry["step"]: entry for entry in yard.metrics()}
    assert entries.keys() == set(range(1, STEPS + 1))
    assert entries[BAD_STEP]["loss"] == "NaN"
    assert "loss" in entries[BAD_STEP + 1]
    assert [step for step, entry in entries.items() if "skippedSteps" in entry] == [8, 9, 10, 11, 12]
    assert entries[STEPS]["skippedSteps"] == 1


def test_fail_is_the_default(yard):
    gang = yard.start(config(params={"steps": STEPS, "batch": BATCH}), 2, function=nan_once())
    assert gang.wait() == [66, 66]
    assert yard.failure()["message"].startswith("step 8: loss nan")
