"""Values of one metric at percents of a program's steps, by which a sweep compares its trials: `loss@10%` (pure).

Built-in trainers keep such values themselves, with their checkpoints.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Tuple

MILESTONES = "TORCHYARD_MILESTONES"
TOTAL_STEPS = "TORCHYARD_TOTAL_STEPS"


@dataclass(frozen=True)
class Milestones:
    """Which values to keep."""

    metric: str
    percents: Tuple[int, ...]

    def passed(self, step: int, total: Any, metrics: Mapping[str, float]) -> Dict[str, float]:
        """Return the values at percents that are not among the metrics and that `step` has passed, by name.

        The value at a percent is the newest one after the first step at or beyond it, or the first one after that.

        Args:
            step: steps done so far.
            total: steps of the whole run; None, or not above 0: unknown.
            metrics: newest values, with those that were kept before; one that is not finite is a value, too.
        """
        if self.metric not in metrics or not total or total <= 0:
            return {}
        names = [f"{self.metric}@{percent}%" for percent in self.percents if 100 * step >= percent * total]
        return {name: metrics[self.metric] for name in names if name not in metrics}


def read_milestones(env: Mapping[str, str]) -> Optional[Milestones]:
    """Return what the environment asks to keep.

    Raises:
        ValueError: names the variable and what it should hold.
    """
    text = env.get(MILESTONES, "")
    if not text:
        return None
    try:
        document = json.loads(text)
        return Milestones(str(document["metric"]), tuple(int(percent) for percent in document["percents"]))
    except (ValueError, TypeError, KeyError) as error:
        form = '{"metric": "loss", "percents": [10, 30]}'
        raise ValueError(f"{MILESTONES} must be JSON such as {form}, got `{text[:100]}`: {error}") from None
