"""The travelling salesperson: one vehicle that visits every city once."""

from collections.abc import Mapping

from torchyard_trainers.cvrp.heuristics import savings
from torchyard_trainers.cvrp.problems.interface import Compared, Problem


class Tsp(Problem):
    """The problem of Kool 2019: cities uniform in the unit square; the tour starts at the first of them."""

    unit = "cities"

    @property
    def heuristics(self) -> Mapping[str, Compared]:
        """See `Problem`."""
        return {**super().heuristics, "costSavings": Compared("savings", savings)}

    def nodes(self, customers: int) -> int:
        """See `Problem`: where the tour starts is a city like others."""
        return customers
