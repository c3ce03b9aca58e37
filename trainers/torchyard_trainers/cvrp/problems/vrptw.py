"""Vehicle routing with time windows: each visit begins in its window, and takes time."""

from collections.abc import Mapping

import torch
from torch import Tensor

from torchyard_trainers.cvrp.insertion import cheapest_insertion
from torchyard_trainers.cvrp.instances import Instances, Sizes, distances
from torchyard_trainers.cvrp.problems.cvrp import Cvrp
from torchyard_trainers.cvrp.problems.interface import TOLERANCE, Compared
from torchyard_trainers.cvrp.tours import InvalidTourError, Tours

HORIZON = 4.6  # when every vehicle has to be home; a unit of time is one of distance
SERVICE = 0.15, 0.18
WIDTH = 0.18, 0.2  # of a window


class Vrptw(Cvrp):
    """CVRP with the time windows of MTPOMO (Liu 2024), which rl4co generates as well; the length counts, not the time.

    Constants and formula were compared with `MTVRPGenerator.generate_time_windows` of rl4co (044c7899): its a, b and c
    are 0.15, 0.18 and 0.2, its `max_time` is 4.6, and its start (1 + (h_max - 1) u) d of a window is d + (4.6 - service
    - width - 2 d) u for h_max = (4.6 - service - width) / d - 1.

    `Instances.more` has when a node opens and closes, and how long a visit takes.
    """

    title = "VRPTW"
    node_features = 4
    vehicle_features = 2
    draws = 6
    inputs = ("xy", "demand", "more", "visited", "node", "load", "time")

    @property
    def heuristics(self) -> Mapping[str, Compared]:
        """See `Problem`."""
        nearest = Compared("nearest neighbour", self.nearest)
        return {"costNearest": nearest, "costInsertion": Compared("insertion", cheapest_insertion)}

    def generate(self, numbers: Tensor, sizes: Sizes) -> Instances:
        """See `Problem`: a customer can be reached in time from the depot, and the depot from the customer."""
        instances = super().generate(numbers, sizes)
        first, second, third = numbers[:, 3 * sizes.nodes :].unflatten(1, (3, -1)).unbind(1)
        service = SERVICE[0] + (SERVICE[1] - SERVICE[0]) * first
        width = WIDTH[0] + (WIDTH[1] - WIDTH[0]) * second
        way = (instances.xy - instances.xy[:, :1]).square().sum(-1).sqrt()
        opens = way + (HORIZON - service - width - 2 * way) * third
        more = torch.stack([opens, opens + width, service], -1)
        more[:, 0] = torch.tensor([0.0, HORIZON, 0.0], device=more.device)
        return instances._replace(more=more)

    def describe_nodes(self, instances: Instances) -> Tensor:
        """See `Problem`: share of the capacity; opening, closing and service as shares of the horizon."""
        return torch.cat([super().describe_nodes(instances), _times(instances) / HORIZON], -1)

    def describe_vehicles(self, instances: Instances, state: Tours) -> Tensor:
        """See `Problem`: shares of capacity left and of time gone."""
        return torch.cat([super().describe_vehicles(instances, state), _clock(state)[..., None] / HORIZON], -1)

    def depart(self, instances: Instances, samples: int) -> Tours:
        """See `Problem`."""
        state = super().depart(instances, samples)
        return state._replace(time=torch.zeros_like(state.load))

    def feasible(self, instances: Instances, state: Tours) -> Tensor:
        """See `Problem`: a customer is reached before it closes; way home is always in time, as windows are made so."""
        options = super().feasible(instances, state)
        arrival = _clock(state)[..., None] + _ways(instances, state.node)
        in_time = arrival <= _times(instances)[:, None, :, 1]
        in_time[..., 0] = True
        return options & in_time

    def visit(self, instances: Instances, state: Tours, node: Tensor) -> Tours:
        """See `Problem`: a vehicle waits until the customer opens; at the depot, the next one starts at 0."""
        way = _ways(instances, state.node).gather(-1, node[..., None])[..., 0]
        opens, _, service = (each.gather(1, node) for each in _times(instances).unbind(-1))
        leaves = torch.maximum(_clock(state) + way, opens) + service
        return super().visit(instances, state, node)._replace(time=torch.where(node == 0, 0.0, leaves))

    def check(self, instances: Instances, moves: Tensor, claimed: Tensor) -> None:
        """See `Problem`: drive each tour again, and look at the clock at every node."""
        super().check(instances, moves, claimed)
        distance, (opens, closes, service) = distances(instances), _times(instances).unbind(-1)
        rows = torch.arange(len(moves), device=moves.device)[:, None]
        here, clock = torch.zeros_like(moves[..., 0]), torch.zeros_like(claimed)
        for node in (*moves.unbind(-1), torch.zeros_like(here)):
            arrival = clock + distance[rows, here, node]
            if bool((late := arrival > closes[rows, node] + TOLERANCE).any()):
                raise InvalidTourError(f"{int(late.sum())} of {late.numel()} tours come too late")
            clock = torch.where(node == 0, 0.0, torch.maximum(arrival, opens[rows, node]) + service[rows, node])
            here = node

    def windows(self, instances: Instances) -> Tensor | None:
        """See `Problem`."""
        return instances.more


def _times(instances: Instances) -> Tensor:
    """Return opening, closing and service of each node, [B, n, 3]."""
    assert instances.more is not None
    return instances.more


def _clock(state: Tours) -> Tensor:
    """Return when each vehicle leaves its node, [B, S]."""
    assert state.time is not None
    return state.time


def _ways(instances: Instances, node: Tensor) -> Tensor:
    """Return the distances from nodes [B, S] to all nodes, [B, S, n]."""
    here = instances.xy.gather(1, node[..., None].expand(-1, -1, 2))
    return (here[:, :, None] - instances.xy[:, None]).square().sum(-1).sqrt()
