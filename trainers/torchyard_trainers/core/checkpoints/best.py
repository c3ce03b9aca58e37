"""Selection of the best checkpoints by the workload's score; lower is better."""

import math
from collections.abc import Iterable

from torchyard_trainers.core.world import World


class Best:
    """The `count` best scores of a run so far. Every rank has the same scores, so all decide alike."""

    def __init__(self, count: int, scores: Iterable[float] = ()) -> None:
        """Start with the scores of the existing checkpoints."""
        self._count = count
        self._scores = sorted(scores)[:count]

    def admits(self, score: float | None) -> bool:
        """Whether a model with this score is among the best: fewer than `count`, or better than the worst of them."""
        if self._count == 0 or score is None or not math.isfinite(score):
            return False
        return len(self._scores) < self._count or score < self._scores[-1]

    def add(self, score: float | None) -> None:
        """Add the score of a saved checkpoint."""
        if score is not None and self.admits(score):
            self._scores = sorted([*self._scores, score])[: self._count]


def agreed(score: float | None, world: World) -> float | None:
    """Return rank 0's score on every rank, so that rounding cannot make ranks disagree about a save; None if none."""
    return None if score is None else world.from_leader(lambda: score)
