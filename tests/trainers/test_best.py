"""Which checkpoints are the best: lower scores, decided alike on every rank."""

import math

from hypothesis import given
from hypothesis import strategies as some

from torchyard_trainers.core.checkpoints.best import Best


def test_keep_best_0_keeps_no_checkpoint():
    assert not Best(0).admits(1.0)


def test_a_score_of_nan_is_never_the_best():
    assert not Best(3).admits(None)
    assert not Best(3).admits(math.nan)
    assert not Best(3).admits(math.inf)


def test_a_resumed_run_knows_the_scores_that_are_kept():
    best = Best(2, [5.0, 4.0, 6.0])
    assert best.admits(4.9)
    assert not best.admits(5.0)


@given(some.lists(some.floats(0, 100)), some.integers(1, 5))
def test_a_checkpoint_is_kept_if_its_score_is_among_the_lowest_so_far(scores, count):
    best = Best(count)
    for place, score in enumerate(scores):
        before = sorted(scores[:place])
        assert best.admits(score) == (place < count or score < before[count - 1])
        best.add(score)
