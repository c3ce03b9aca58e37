"""A problem of CVRPLIB and the length of its tours. Does not import torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

METRICS = ("EUC_2D", "CEIL_2D")
REAL = "real distances"


@dataclass(frozen=True)
class Problem:
    """One file. Node 0 is the depot, whatever its number in the file; customers keep their order."""

    name: str  # for people: printable, at most 60 characters
    metric: str  # EUC_2D: distances are rounded to whole numbers; CEIL_2D: rounded up; REAL: as they are
    xy: tuple[tuple[float, float], ...]
    demand: tuple[int, ...]  # 0 at the depot
    capacity: int
    best: float | None  # length of the best known solution in this metric, from `.sol` beside the file or its comment
    slug: str = "problem"  # names its files: letters, digits, `.`, `_` and `-`; another one for each problem of a run

    def length(self, moves: Sequence[int]) -> float:
        """Return the length of a tour that starts and ends at the depot and comes home whenever it says 0."""
        stops = [0, *moves, 0]
        return sum(self._distance(a, b) for a, b in pairwise(stops))

    def written(self, length: float) -> str:
        """Return a length as CVRPLIB writes it: whole where distances are rounded, else with two decimals."""
        return f"{length:.2f}" if self.metric == REAL else f"{length:.0f}"

    def _distance(self, a: int, b: int) -> float:
        exact = math.dist(self.xy[a], self.xy[b])
        if self.metric == REAL:
            return exact
        return math.ceil(exact) if self.metric == "CEIL_2D" else int(exact + 0.5)
