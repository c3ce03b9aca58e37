"""The nearest-neighbour heuristic: what a model must beat to have learned anything."""

import torch
from torch import Tensor

from torchyard_trainers.cvrp import tours
from torchyard_trainers.cvrp.instances import Instances


def nearest_neighbour(instances: Instances) -> tuple[Tensor, Tensor]:
    """Always drive to the nearest customer whose demand fits, home when none does.

    Returns:
        Moves [B, 1, 2N] int64 and lengths [B, 1].
    """
    distance = torch.cdist(instances.xy, instances.xy)
    state = tours.depart(instances, 1)
    moves = []
    for _ in range(tours.longest(instances.demand.shape[1] - 1)):
        options = tours.feasible(instances, state)
        to_customers = distance.gather(1, state.node[..., None].expand(-1, -1, distance.shape[-1]))
        to_customers = to_customers.masked_fill(~options, torch.inf)
        any_customer = options[..., 1:].any(-1)
        node = torch.where(any_customer, to_customers[..., 1:].argmin(-1) + 1, 0)
        state = tours.visit(instances, state, node)
        moves.append(node)
    taken = torch.stack(moves, -1)
    return taken, tours.length(instances, taken)
