"""Heuristics without learning, for a whole batch at once: what a model must beat to have learned anything."""

import torch
from torch import Tensor

from torchyard_trainers.cvrp import tours
from torchyard_trainers.cvrp.instances import Instances, distances

PAIRS_AT_ONCE = 128


def savings(instances: Instances) -> tuple[Tensor, Tensor]:
    """Start with a route for each customer and join the two whose joining saves most, again and again.

    The parallel version of Clarke and Wright (1964): a pair of customers i, j in the order of d_0i + d_0j - d_ij joins
    their routes if both are ends of different routes that fit into one vehicle.

    Few pairs ever join, and one that cannot never will: of the next pairs in order the first that can is looked for in
    all instances at once, until none is left. One pair after the other, 1000 customers take minutes.

    Returns:
        Moves [B, 1, 2N] int64 and lengths [B, 1].
    """
    distance = distances(instances)
    batch, nodes = instances.demand.shape
    rows = torch.arange(batch, device=distance.device)
    first, second = torch.triu_indices(nodes - 1, nodes - 1, 1, device=distance.device) + 1
    saved = distance[:, 0, first] + distance[:, 0, second] - distance[:, first, second]
    route = torch.arange(nodes, device=distance.device).repeat(batch, 1)
    load = instances.demand.clone()  # of the route with this number
    links = torch.zeros(batch, nodes, 2, dtype=torch.int64, device=distance.device)  # neighbours in the route; 0: depot
    degree = torch.zeros(batch, nodes, dtype=torch.int64, device=distance.device)
    for pairs in saved.argsort(dim=1, descending=True, stable=True).split(PAIRS_AT_ONCE, 1):
        left, right = first[pairs], second[pairs]
        while True:
            into, gone = route.gather(1, left), route.gather(1, right)
            ends = (degree.gather(1, left) < 2) & (degree.gather(1, right) < 2)
            fits = load.gather(1, into) + load.gather(1, gone) <= instances.capacity
            possible = ends & fits & (into != gone)
            if not bool(possible.any()):
                break
            place = possible.int().argmax(1)
            joins = possible[rows, place]
            i, j, into, gone = (each[rows, place] for each in (left, right, into, gone))
            load[rows, into] += torch.where(joins, load[rows, gone], 0.0)
            route = torch.where(joins[:, None] & (route == gone[:, None]), into[:, None], route)
            for here, there in ((i, j), (j, i)):
                slot = degree[rows, here].clamp(max=1)
                links[rows, here, slot] = torch.where(joins, there, links[rows, here, slot])
                degree[rows, here] += joins
    moves = _walk(links, degree)
    return moves, tours.length(instances, moves)


def _walk(links: Tensor, degree: Tensor) -> Tensor:
    """Drive along all routes, each from one of its ends: links [B, n, 2], degree [B, n] -> moves [B, 1, 2N]."""
    batch, nodes, _ = links.shape
    rows = torch.arange(batch, device=links.device)
    starts = degree < 2
    starts[:, 0] = False
    here = torch.zeros(batch, dtype=torch.int64, device=links.device)
    before = here
    moves = []
    for _ in range(tours.longest(nodes - 1)):
        onward = torch.where(links[rows, here, 0] != before, links[rows, here, 0], links[rows, here, 1])
        next_start = torch.where(starts.any(1), starts.int().argmax(1), 0)
        # At the end of a route one link leads back and the other, empty, to the depot. A route of one has none.
        onward = torch.where(here == 0, next_start, onward)
        before, here = here, onward
        starts[rows, here] = False
        moves.append(here)
    return torch.stack(moves, -1)[:, None]
