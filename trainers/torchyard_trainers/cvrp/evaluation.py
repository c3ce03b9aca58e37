"""Evaluation on fixed sets and on files, spread over ranks; every tour is checked."""

import torch
from torch import Tensor, nn

from torchyard_trainers.core.evaluation import each_over_ranks, over_ranks
from torchyard_trainers.core.workload import Session
from torchyard_trainers.cvrp import decoding
from torchyard_trainers.cvrp.files.problem import Problem
from torchyard_trainers.cvrp.instances import Instances, generate
from torchyard_trainers.cvrp.params import Settings
from torchyard_trainers.cvrp.problems import Cvrp, open_problem

# The set is the same for every seed, so that costs of different runs can be compared; 1234 as in Kool 2019.
EVALUATION = "evaluation"
EVALUATION_SEED = 1234


def tour_lengths(
    session: Session, policy: nn.Module, settings: Settings, stream: str, count: int, *, how: str = "greedy"
) -> Tensor:
    """Return the length of the policy's tour for each of `count` instances: [count] float64. Collective."""

    def lengths(positions: list[int]) -> Tensor:
        ids = torch.tensor(positions, device=session.world.device)
        instances = make(settings, stream, ids)
        routes = decoding.seek(policy, instances, how, settings.decoding_samples, ids)
        problem.check(instances, routes.moves, routes.cost)
        return routes.cost[:, 0]

    problem = open_problem(settings.problem)
    routes = decoding.routes_each(how, settings.decoding_samples, problem.nodes(settings.customers) - 1)
    at_once = max(1, settings.eval_batch // routes)
    return over_ranks(session, lengths, count, at_once=at_once)


def heuristic_cost(session: Session, settings: Settings, name: str, stream: str, count: int) -> float:
    """Return a heuristic's mean tour length on a set, by the name of its metric. Collective."""

    def lengths(positions: list[int]) -> Tensor:
        instances = make(settings, stream, torch.tensor(positions, device=session.world.device))
        moves, cost = problem.heuristics[name].solve(instances)
        problem.check(instances, moves, cost)
        return cost[:, 0]

    problem = open_problem(settings.problem)

    return float(over_ranks(session, lengths, count, at_once=settings.eval_batch, casts=False).mean())


def solve(session: Session, policy: nn.Module, settings: Settings, problems: list[Problem]) -> list[list[int]]:
    """Return the policy's tour for each problem of a file, one forward pass each. Collective."""
    device = session.world.device

    def tour(position: int) -> list[int]:
        instances = place(problems[position], device)
        ids = torch.tensor([position], device=device)
        routes = decoding.seek(policy, instances, settings.decoding, settings.decoding_samples, ids)
        Cvrp().check(instances, routes.moves, routes.cost)
        return routes.moves[0, 0].tolist()

    return each_over_ranks(session, tour, len(problems))


def place(problem: Problem, device: torch.device) -> Instances:
    """Put a problem into the unit square, without stretching it: the policy has seen no other."""
    xy = torch.tensor(problem.xy, dtype=torch.float64)
    xy = xy - xy.amin(0)
    xy = (xy / xy.amax().clamp(min=1e-9)).float()
    demand = torch.tensor(problem.demand, dtype=torch.float32)
    capacity = torch.tensor(float(problem.capacity))
    return Instances(xy[None].to(device), demand[None].to(device), capacity.to(device))


def make(settings: Settings, stream: str, ids: Tensor) -> Instances:
    """Make instances of the run's problem; the evaluation set does not depend on the run's seed and is held out."""
    held_out = stream == EVALUATION
    problem = open_problem(settings.problem)
    return generate(
        EVALUATION_SEED if held_out else settings.seed,
        stream,
        ids,
        customers=problem.nodes(settings.customers) - 1,
        capacity=settings.capacity,
        distribution=settings.distribution,
        held_out=held_out,
        draws=problem.draws,
        make=problem.generate,
    )
