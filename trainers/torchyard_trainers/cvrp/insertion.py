"""A heuristic for time windows: the customer whose insertion saves most goes where it costs least, again and again."""

import torch
from torch import Tensor

from torchyard_trainers.cvrp import tours
from torchyard_trainers.cvrp.instances import Instances, distances


@torch.no_grad()
def cheapest_insertion(instances: Instances) -> tuple[Tensor, Tensor]:
    """Insert customers into routes one after the other, all routes at once (after I1 of Solomon 1987, lambda 2).

    Of all customers and places between two stops that leave every visit in time and every load within the capacity, the
    pair is taken that saves most over a route for this customer alone; there is always an empty route. All routes of an
    instance are one list of stops, with the depot between them.

    Args:
        instances: `more` has opening, closing and service of each node, [B, n, 3].

    Returns:
        Moves [B, 1, 2N] int64 and lengths [B, 1].
    """
    assert instances.more is not None
    distance = distances(instances)
    batch, nodes = instances.demand.shape
    rows = torch.arange(batch, device=distance.device)
    stops = torch.zeros(batch, 2, dtype=torch.int64, device=distance.device)
    waiting = torch.ones(batch, nodes, dtype=torch.bool, device=distance.device)
    waiting[:, 0] = False
    for _ in range(nodes - 1):
        extra = _extra(instances, distance, stops).masked_fill(~waiting[:, :, None], torch.inf)
        # Of customers that save as much, such as all that are alone at first, the farthest comes first.
        saved = 2.001 * distance[:, 0, :, None] - extra
        best = saved.flatten(1).argmax(1)
        customer, place = best // extra.shape[2], best % extra.shape[2]
        stops = _inserted(stops, customer, place)
        waiting[rows, customer] = False
    moves = torch.nn.functional.pad(stops[:, 1:], (0, 2 * (nodes - 1)))[:, None, : tours.longest(nodes - 1)]
    return moves, tours.length(instances, moves)


def _extra(instances: Instances, distance: Tensor, stops: Tensor) -> Tensor:
    """Return what it costs to insert each customer behind each stop but the last: [B, n, L - 1]; inf where it may not.

    Args:
        instances: B problems.
        distance: [B, n, n].
        stops: [B, L], the depot first and last, and twice in a row for an empty route.
    """
    assert instances.more is not None
    rows = torch.arange(len(stops), device=stops.device)[:, None]
    before, after = stops[:, :-1], stops[:, 1:]
    way = distance[rows, before, after]
    opens, closes, service = (each[rows, stops] for each in instances.more.unbind(-1))
    leaves, latest = torch.zeros_like(opens), closes.clone()
    load = torch.zeros_like(opens)
    demand = instances.demand[rows, stops]
    home = stops == 0
    for at in range(1, stops.shape[1]):
        arrival = torch.maximum(leaves[:, at - 1] + way[:, at - 1], opens[:, at])
        leaves[:, at] = torch.where(home[:, at], 0.0, arrival + service[:, at])
        load[:, at] = torch.where(home[:, at], 0.0, load[:, at - 1] + demand[:, at])
    for at in range(stops.shape[1] - 2, -1, -1):
        onward = torch.minimum(closes[:, at], latest[:, at + 1] - way[:, at] - service[:, at])
        latest[:, at] = torch.where(home[:, at], closes[:, at], onward)
        # The load of a whole route, at each of its stops and at the depot before it.
        load[:, at] = torch.where(home[:, at + 1], load[:, at], load[:, at + 1])
    there, back = (distance[rows, each].transpose(1, 2) for each in (before, after))  # [B, n, L - 1]
    start, end, long = (each[:, :, None] for each in instances.more.unbind(-1))
    arrival = torch.maximum(leaves[:, None, :-1] + there, start)
    in_time = (arrival <= end) & (arrival + long + back <= latest[:, None, 1:])
    fits = load[:, None, :-1] + instances.demand[:, :, None] <= instances.capacity
    return (there + back - way[:, None]).masked_fill(~(in_time & fits), torch.inf)


def _inserted(stops: Tensor, customer: Tensor, place: Tensor) -> Tensor:
    """Return stops [B, L + 2] with customers [B] behind the stop number `place` [B], and an empty route at the end."""
    batch, length = stops.shape
    position = torch.arange(length + 1, device=stops.device).expand(batch, -1)
    place = place[:, None]
    source = torch.where(position > place, position - 1, position).clamp(max=length - 1)
    found = torch.where(position == place + 1, customer[:, None], stops.gather(1, source))
    return torch.nn.functional.pad(found, (0, 1))
