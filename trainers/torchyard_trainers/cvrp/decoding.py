"""How a trained policy seeks a route: the most likely choices, samples, eight pictures of the problem, all starts."""

import torch
from torch import Tensor, nn

from torchyard_trainers.core.randomness import sample_keys, split_keys, stream_key
from torchyard_trainers.cvrp.instances import Instances
from torchyard_trainers.cvrp.policy import Routes

SYMMETRIES = 8


def seek(policy: nn.Module, instances: Instances, decoding: str, samples: int, ids: Tensor) -> Routes:
    """Return the best route found for each of B instances: cost [B, 1], moves [B, 1, T].

    Args:
        policy: of cvrp.
        instances: B problems.
        decoding: `greedy`, `sampling` (best of `samples`), or as POMO (Kwon 2020) `augmented` (best of the greedy
            routes of 8 symmetric pictures of the problem) or `multistart` (of each picture one for each customer, which
            it visits first).
        samples: routes of `sampling`.
        ids: [B] sample ids: which routes are sampled depends on nothing else.
    """
    if decoding == "sampling":
        return best(policy(instances, split_keys(sample_keys(stream_key(0, "sampling"), ids), samples)))
    if decoding == "greedy":
        return policy(instances)
    count, nodes = instances.demand.shape
    starts = torch.arange(1, nodes, device=ids.device) if decoding == "multistart" else None
    seen = policy(symmetries(instances), starts=starts)
    # [8 B, S] -> [B, 8 S]; distances are those of the problem itself, but for rounding.
    cost, moves = (each.unflatten(0, (SYMMETRIES, count)).transpose(0, 1).flatten(1, 2) for each in seen[:2])
    return best(Routes(cost, moves))


def routes_each(decoding: str, samples: int, customers: int) -> int:
    """Return how many routes an instance of so many customers beside the depot takes."""
    routes = {"greedy": 1, "sampling": samples, "augmented": SYMMETRIES, "multistart": SYMMETRIES * customers}
    return routes[decoding]


def best(routes: Routes) -> Routes:
    """Keep the shortest of each instance's routes: [B, S] -> [B, 1]."""
    index = routes.cost.argmin(1, keepdim=True)
    moves = routes.moves.gather(1, index[..., None].expand(-1, -1, routes.moves.shape[-1]))
    return Routes(routes.cost.gather(1, index), moves)


def symmetries(instances: Instances) -> Instances:
    """Turn and mirror the unit square: B instances -> 8 B, those of each symmetry together; first the identity."""
    x, y = instances.xy.unbind(-1)
    sides = [(x, y), (1 - x, y), (x, 1 - y), (1 - x, 1 - y)]
    sides += [(second, first) for first, second in sides]
    xy = torch.cat([torch.stack(pair, -1) for pair in sides])
    more = None if instances.more is None else instances.more.repeat(SYMMETRIES, 1, 1)
    return Instances(xy, instances.demand.repeat(SYMMETRIES, 1), instances.capacity, more)
