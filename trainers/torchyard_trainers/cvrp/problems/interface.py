"""The interface of routing problems: what a policy sees, where a vehicle may go, and what a solution costs.

Node 0 is the depot: every tour starts and ends there. A problem of your own derives from `Problem`, which has the rules
of one vehicle that visits every node once, and overrides what differs. All functions are pure, on tensors of S tours at
once for each of B instances of n nodes, and never wait for a value of the device.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from torchyard_trainers.cvrp import tours
from torchyard_trainers.cvrp.instances import Instances, Sizes, distances
from torchyard_trainers.cvrp.tours import InvalidTourError, Tours

Heuristic = Callable[[Instances], tuple[Tensor, Tensor]]
TOLERANCE = 1e-4  # of lengths and times in a check, which sums up in another order


class Compared(NamedTuple):
    """A heuristic that the policy is compared with.

    Attributes:
        name: for people.
        solve: returns moves [B, 1, T] int64 and costs [B, 1].
    """

    name: str
    solve: Heuristic


class Problem:
    """A routing problem; this one is that of the travelling salesperson.

    Attributes:
        title: for people.
        unit: what `trainer.params.customers` counts.
        node_features: numbers that describe a customer beside its place, F.
        vehicle_features: numbers that describe a vehicle beside where it is, C, at least 1.
        draws: uniform numbers of which a node is made.
        capacitated: vehicles have a capacity, which `trainer.params.capacity` sets.
        inputs: what an exported policy reads of instances and of tours, by the names of their fields.
    """

    title = "TSP"
    unit = "customers"
    node_features = 0
    vehicle_features = 1
    draws = 2
    capacitated = False
    inputs: tuple[str, ...] = ("xy", "visited", "node")

    @property
    def heuristics(self) -> Mapping[str, Compared]:
        """What the policy is compared with, by the name of a metric; gaps are to the last one."""
        return {"costNearest": Compared("nearest neighbour", self.nearest)}

    def nodes(self, customers: int) -> int:
        """Return the nodes of an instance with this value of `trainer.params.customers`."""
        return customers + 1

    def longest(self, nodes: int) -> int:
        """Return the most moves that a tour can need, its way home included."""
        return nodes

    def generate(self, numbers: Tensor, sizes: Sizes) -> Instances:
        """Make instances of uniform numbers in (0, 1) [B, draws n]."""
        count = len(numbers)
        xy = numbers[:, : 2 * sizes.nodes].reshape(count, -1, 2)
        if sizes.distribution == "grid-1-10":
            xy = torch.floor(xy * 101) / 100
        return Instances(xy, torch.zeros_like(xy[..., 0]), torch.ones((), device=xy.device))

    def describe_nodes(self, instances: Instances) -> Tensor:
        """Return the features of nodes, between 0 and 1 if possible: [B, n, F] float32."""
        return instances.xy[..., :0]

    def describe_vehicles(self, instances: Instances, state: Tours) -> Tensor:
        """Return the features of vehicles in a situation: [B, S, C] float32; here the share of customers left."""
        return 1 - state.visited.sum(-1, keepdim=True) / instances.xy.shape[1]

    def depart(self, instances: Instances, samples: int) -> Tours:
        """Return the state of `samples` tours that begin at the depot."""
        return tours.depart(instances, samples)

    def feasible(self, _instances: Instances, state: Tours) -> Tensor:
        """Return the nodes that each vehicle may visit next: [B, S, n] bool, never all false.

        A tour that has ended may only stay at the depot.
        """
        options = ~state.visited
        options[..., 0] = tours.served(state)
        return options

    def visit(self, instances: Instances, state: Tours, node: Tensor) -> Tours:
        """Move each vehicle to `node` [B, S]."""
        del instances
        return state._replace(node=node, visited=tours.marked(state.visited, node))

    def ended(self, state: Tours) -> Tensor:
        """Return which tours have ended: [B, S] bool."""
        return tours.served(state) & (state.node == 0)

    def cost(self, instances: Instances, moves: Tensor) -> Tensor:
        """Return what tours cost, which is minimised: moves [B, S, T] int64 -> [B, S] float32."""
        return tours.length(instances, moves)

    def check(self, instances: Instances, moves: Tensor, claimed: Tensor) -> None:
        """Check that tours are solutions that cost what is claimed, independently of how they were constructed.

        Args:
            instances: B problems.
            moves: [B, S, T] nodes in order of visit.
            claimed: [B, S] costs.

        Raises:
            InvalidTourError: one is not.
        """
        tours.check_visits(instances, moves)
        if bool(((moves[..., :-1] == 0) & (moves[..., 1:] != 0)).any()):
            raise InvalidTourError("a tour goes home in between")
        tours.check_claim(self.cost(instances, moves), claimed)

    def windows(self, instances: Instances) -> Tensor | None:
        """Return when each node opens and closes and how long a visit takes, [B, n, 3]; None: always, and no time."""
        del instances
        return None

    @property
    def vehicles(self) -> int | None:
        """Vehicles that the solver may use; None: as many as customers."""
        return 1

    @torch.no_grad()
    def nearest(self, instances: Instances) -> tuple[Tensor, Tensor]:
        """Always drive to the nearest customer that a vehicle may visit, home when there is none.

        Returns:
            Moves [B, 1, T] int64 and costs [B, 1].
        """
        distance = distances(instances)
        state = self.depart(instances, 1)
        moves = []
        for _ in range(self.longest(instances.xy.shape[1])):
            options = self.feasible(instances, state)
            to_customers = distance.gather(1, state.node[..., None].expand(-1, -1, distance.shape[-1]))
            to_customers = to_customers.masked_fill(~options, torch.inf)
            any_customer = options[..., 1:].any(-1)
            node = torch.where(any_customer, to_customers[..., 1:].argmin(-1) + 1, 0)
            state = self.visit(instances, state, node)
            moves.append(node)
        taken = torch.stack(moves, -1)
        return taken, self.cost(instances, taken)
