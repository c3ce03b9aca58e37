"""When a checkpoint is due."""

from torchyard_trainers.core.cadence import Cadence
from torchyard_trainers.core.config import Interval


def test_every_so_many_steps():
    cadence = Cadence(Interval(steps=10), step=0, now=0)
    assert [step for step in range(1, 41) if cadence.due(step, 0)] == [10, 20, 30, 40]


def test_every_so_many_seconds_since_the_last_save():
    cadence = Cadence(Interval(seconds=30), step=0, now=100)
    assert not cadence.due(5, 129)
    assert cadence.due(6, 130)
    cadence.saved(6, 131, 1)
    assert not cadence.due(7, 160)
    assert cadence.due(8, 161)


def test_auto_spends_at_most_one_percent_on_saving():
    cadence = Cadence(None, step=0, now=0)
    assert cadence.period() == 10
    for seconds, period in ((0.05, 10), (1, 100), (12, 1200), (60, 1800)):
        cadence.saved(1, 0, seconds)
        assert cadence.period() == period
