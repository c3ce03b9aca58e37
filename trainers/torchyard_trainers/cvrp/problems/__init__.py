"""The routing problems there are; a new one is a file here, or a class of the user's."""

import functools

import torch

from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.parameters import module_of
from torchyard_trainers.cvrp.instances import Instances, Sizes, distances
from torchyard_trainers.cvrp.params import OURS
from torchyard_trainers.cvrp.problems.cvrp import Cvrp
from torchyard_trainers.cvrp.problems.interface import Compared, Problem
from torchyard_trainers.cvrp.problems.tsp import Tsp
from torchyard_trainers.cvrp.problems.vrptw import Vrptw
from torchyard_trainers.cvrp.tours import InvalidTourError, Tours
from torchyard_trainers.rl.outside import blamed

__all__ = (
    "Compared",
    "Cvrp",
    "Instances",
    "InvalidTourError",
    "Problem",
    "Sizes",
    "Tours",
    "Tsp",
    "Vrptw",
    "distances",
    "open_problem",
)


@functools.cache
def open_problem(name: str) -> Problem:
    """Return a problem by its name, or MODULE:CLASS of the user's.

    Raises:
        ConfigError: there is no such class, it is none of a problem, or what it returns has other shapes.
    """
    if name in OURS:
        return {"cvrp": Cvrp, "tsp": Tsp, "vrptw": Vrptw}[name]()
    at = f"trainer.params.problem: {name!r}"
    path, _, kind = name.partition(":")
    found = getattr(module_of(path, at), kind, None)
    if not (isinstance(found, type) and issubclass(found, Problem)):
        raise ConfigError(f"{at}, but {path} has no class {kind} derived from torchyard_trainers.cvrp.problems.Problem")
    with blamed(at, "making it", "take no arguments"):
        problem = found()
    _check(problem, at)
    return problem


@torch.no_grad()
def _check(problem: Problem, at: str) -> None:
    """Take one step in a few tours and check the shapes of what a problem returns.

    Raises:
        ConfigError: one is another than `Problem` says, or a method raises.
    """
    known = {*Instances._fields, *Tours._fields} - {"capacity"}
    if unknown := [name for name in problem.inputs if name not in known]:
        raise ConfigError(f"{at}: inputs has {unknown[0]!r}; use names of {', '.join(sorted(known))}")
    batch, samples, nodes = 2, 3, problem.nodes(6)
    fix = "see Problem in torchyard_trainers.cvrp.problems"
    with blamed(at, f"generate, depart, feasible, visit, describe_* or cost of {batch} instances", fix):
        numbers = torch.linspace(0.01, 0.99, batch * problem.draws * nodes).view(batch, -1)
        instances = problem.generate(numbers, Sizes(nodes, 20, "uniform"))
        state = problem.depart(instances, samples)
        options = problem.feasible(instances, state)
        moved = problem.visit(instances, state, options.int().argmax(-1))
        cost = problem.cost(instances, moved.node[..., None])
        shapes = {
            "generate: xy": (instances.xy, [batch, nodes, 2]),
            "generate: demand": (instances.demand, [batch, nodes]),
            "describe_nodes": (problem.describe_nodes(instances), [batch, nodes, problem.node_features]),
            "describe_vehicles": (
                problem.describe_vehicles(instances, moved),
                [batch, samples, max(1, problem.vehicle_features)],
            ),
            "feasible": (options, [batch, samples, nodes]),
            "visit: visited": (moved.visited, [batch, samples, nodes]),
            "cost": (cost, [batch, samples]),
        }
    for what, (tensor, expected) in shapes.items():
        if list(tensor.shape) != expected:
            raise ConfigError(f"{at}: {what} returns shape {list(tensor.shape)}, expected {expected}; {fix}")
    if options.dtype != torch.bool or not bool(options.any(-1).all()):
        raise ConfigError(f"{at}: feasible returns {options.dtype}, or no node at all; return bool, true somewhere")
