"""Greedy evaluation on fixed sets, spread over ranks; every tour is checked."""

import torch
from torch import Tensor, nn

from torchyard_trainers.core.batching import split
from torchyard_trainers.core.workload import Session
from torchyard_trainers.cvrp import tours
from torchyard_trainers.cvrp.instances import Instances, generate
from torchyard_trainers.cvrp.nearest import nearest_neighbour
from torchyard_trainers.cvrp.params import Settings

# The set is the same for every seed, so that costs of different runs can be compared; 1234 as in Kool 2019.
EVALUATION = "evaluation"
EVALUATION_SEED = 1234


@torch.no_grad()
def greedy_costs(session: Session, policy: nn.Module, settings: Settings, stream: str, count: int) -> Tensor:
    """Give the policy's greedy tour length for each of `count` instances: [count] float64. Collective."""
    world = session.world
    positions: list[int] = []
    costs: list[Tensor] = []
    for slots in split(count, world.size, world.rank, settings.eval_batch):
        instances = make(settings, stream, torch.tensor(slots.positions, device=world.device))
        with session.precision.forward():
            routes = policy(instances)
        tours.check(instances, routes.moves, routes.cost)
        real = int(sum(slots.weights))
        positions += slots.positions[:real]
        costs.append(routes.cost[:real, 0])
    return world.merge(count, positions, torch.cat(costs))


def nearest_cost(session: Session, settings: Settings, stream: str, count: int) -> float:
    """Give the mean tour length of the nearest-neighbour heuristic on a set; cheap, so every rank does all of it."""
    total = 0.0
    for slots in split(count, 1, 0, settings.eval_batch):
        instances = make(settings, stream, torch.tensor(slots.positions, device=session.world.device))
        moves, cost = nearest_neighbour(instances)
        tours.check(instances, moves, cost)
        total += float(cost.double()[:, 0].dot(cost.new_tensor(slots.weights).double()))
    return total / count


def make(settings: Settings, stream: str, ids: Tensor) -> Instances:
    """Make instances of the run's problem; the evaluation set does not depend on the run's seed and is held out."""
    held_out = stream == EVALUATION
    return generate(
        EVALUATION_SEED if held_out else settings.seed,
        stream,
        ids,
        customers=settings.customers,
        capacity=settings.capacity,
        distribution=settings.distribution,
        held_out=held_out,
    )
