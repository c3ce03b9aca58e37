"""Values of one metric at given shares of a run, which stay in the report: `evalReturn@10%`.

A controller that compares runs reads them whenever it likes: they depend on steps alone, and a resumed run has them
from its checkpoint.
"""

from collections.abc import Mapping

from torchyard_trainers.core.config import Milestones


def with_milestones(
    milestones: Milestones | None, metrics: dict[str, float], step: int, total_steps: int
) -> dict[str, float]:
    """Return metrics of a run with the milestones that `step` is the first one to have passed.

    A metric that was not measured yet counts as soon as it is.

    Args:
        milestones: of the config.
        metrics: of the run so far, with milestones that were passed before.
        step: number of finished steps.
        total_steps: of the whole run.
    """
    if milestones is None or milestones.metric not in metrics:
        return metrics
    value = metrics[milestones.metric]
    passed = [percent for percent in milestones.percents if 100 * step >= percent * total_steps]
    return {name_of(milestones, percent): value for percent in passed} | metrics


def milestones_of(milestones: Milestones | None, metrics: Mapping[str, float]) -> dict[str, float]:
    """Return those of the metrics that are milestones."""
    if milestones is None:
        return {}
    names = {name_of(milestones, percent) for percent in milestones.percents}
    return {name: value for name, value in metrics.items() if name in names}


def name_of(milestones: Milestones, percent: int) -> str:
    """Return the name under which a milestone is reported."""
    return f"{milestones.metric}@{percent}%"
