"""Capacitated vehicle routing: vehicles of one capacity serve every customer's demand."""

from collections.abc import Mapping

from torch import Tensor

from torchyard_trainers.cvrp import tours
from torchyard_trainers.cvrp.heuristics import savings
from torchyard_trainers.cvrp.instances import Instances, Sizes, standard
from torchyard_trainers.cvrp.problems.interface import Compared, Problem
from torchyard_trainers.cvrp.tours import Tours


class Cvrp(Problem):
    """The problem of Kool 2019, with as many vehicles as a solution needs."""

    title = "CVRP"
    node_features = 1
    draws = 3
    capacitated = True
    inputs: tuple[str, ...] = ("xy", "demand", "visited", "node", "load")

    @property
    def heuristics(self) -> Mapping[str, Compared]:
        """See `Problem`."""
        return {**super().heuristics, "costSavings": Compared("savings", savings)}

    def longest(self, nodes: int) -> int:
        """See `Problem`: the depot after every customer."""
        return tours.longest(nodes - 1)

    def generate(self, numbers: Tensor, sizes: Sizes) -> Instances:
        """See `Problem`."""
        return standard(numbers, sizes)

    def describe_nodes(self, instances: Instances) -> Tensor:
        """See `Problem`: the share of a vehicle's capacity."""
        return (instances.demand / instances.capacity)[..., None]

    def describe_vehicles(self, instances: Instances, state: Tours) -> Tensor:
        """See `Problem`: the share of its capacity left."""
        return (state.load / instances.capacity)[..., None]

    def feasible(self, instances: Instances, state: Tours) -> Tensor:
        """See `Problem`."""
        return tours.feasible(instances, state)

    def visit(self, instances: Instances, state: Tours, node: Tensor) -> Tours:
        """See `Problem`."""
        return tours.visit(instances, state, node)

    def check(self, instances: Instances, moves: Tensor, claimed: Tensor) -> None:
        """See `Problem`."""
        tours.check(instances, moves, claimed)

    @property
    def vehicles(self) -> int | None:
        """See `Problem`."""
        return None
