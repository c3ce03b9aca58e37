"""When a checkpoint is due."""

import pytest

from torchyard_trainers.core.checkpoints.cadence import Cadence
from torchyard_trainers.core.config import Interval


def test_an_interval_of_steps_saves_each_time_that_many_steps_have_passed():
    cadence = Cadence(Interval(steps=10), now=0)
    assert [step for step in range(1, 41) if cadence.due(step, 0)] == [10, 20, 30, 40]


def test_a_step_that_cannot_be_saved_is_saved_with_the_next_one_that_can():
    cadence = Cadence(Interval(steps=10), now=0, save_every=4)
    assert [step for step in range(4, 45, 4) if cadence.due(step, 0)] == [12, 20, 32, 40]


def test_an_interval_of_seconds_counts_from_the_start_of_the_last_save():
    cadence = Cadence(Interval(seconds=30), now=100)
    assert not cadence.due(5, 129)
    assert cadence.due(6, 130)
    cadence.begun(131)
    cadence.saved(stall=1, seconds=20)
    assert not cadence.due(7, 160)
    assert cadence.due(8, 161)


@pytest.mark.parametrize(
    ("stall", "seconds", "period"),
    [(0.05, 0.1, 10), (1, 2, 100), (12, 13, 1200), (60, 61, 1800), (0.1, 5, 50), (0.1, 500, 1800)],
)
def test_the_automatic_interval_limits_stalls_to_one_percent_and_writing_to_ten(stall, seconds, period):
    cadence = Cadence(None, now=0)
    assert cadence.period() == 10
    cadence.saved(stall=stall, seconds=seconds)
    assert cadence.period() == period
