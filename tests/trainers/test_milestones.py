"""Milestones: values of a metric that depend on steps alone, and survive a resume with the metrics of a checkpoint."""

from torchyard_trainers.core.config import Milestones
from torchyard_trainers.core.metrics.milestones import milestones_of, with_milestones

MARKS = Milestones(metric="cost", percents=[10, 50])


def run(values, metrics, start=0, total=20):
    """Metrics of a run that measures `cost` at the steps of `values`, from a step on."""
    for step in range(start + 1, total + 1):
        metrics = with_milestones(MARKS, metrics | ({"cost": values[step]} if step in values else {}), step, total)
    return metrics


def test_the_first_value_after_each_percent_is_kept():
    found = run({1: 9.0, 2: 8.0, 12: 7.0, 20: 6.0}, {})
    assert milestones_of(MARKS, found) == {"cost@10%": 8.0, "cost@50%": 8.0}, "at step 10 the newest value is of step 2"
    assert found["cost"] == 6.0


def test_a_metric_that_is_measured_late_counts_then():
    assert milestones_of(MARKS, run({13: 5.0, 14: 4.0}, {})) == {"cost@10%": 5.0, "cost@50%": 5.0}


def test_a_resumed_run_has_the_same_ones():
    values = {2: 8.0, 7: 7.5, 12: 7.0, 20: 6.0}
    saved = run(values, {}, total=20)
    for stop in range(1, 20):
        before = {}
        for step in range(1, stop + 1):
            before = with_milestones(MARKS, before | ({"cost": values[step]} if step in values else {}), step, 20)
        assert run(values, before, start=stop) == saved


def test_without_milestones_metrics_are_unchanged():
    assert with_milestones(None, {"cost": 1.0}, 5, 10) == {"cost": 1.0}
    assert milestones_of(None, {"cost@10%": 1.0}) == {}
