"""The routing problems there are; a new one is a file here, or a class of the user's."""

from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.parameters import module_of
from torchyard_trainers.cvrp.instances import Instances, Sizes, distances
from torchyard_trainers.cvrp.params import OURS
from torchyard_trainers.cvrp.problems.cvrp import Cvrp
from torchyard_trainers.cvrp.problems.interface import Compared, Problem
from torchyard_trainers.cvrp.problems.tsp import Tsp
from torchyard_trainers.cvrp.problems.vrptw import Vrptw
from torchyard_trainers.cvrp.tours import InvalidTourError, Tours

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


def open_problem(name: str) -> Problem:
    """Return a problem by its name, or MODULE:CLASS of the user's.

    Raises:
        ConfigError: there is no such class, or it is none of a problem.
    """
    if name in OURS:
        return {"cvrp": Cvrp, "tsp": Tsp, "vrptw": Vrptw}[name]()
    at = f"trainer.params.problem: {name!r}"
    path, _, kind = name.partition(":")
    found = getattr(module_of(path, at), kind, None)
    if not (isinstance(found, type) and issubclass(found, Problem)):
        raise ConfigError(f"{at}, but {path} has no class {kind} derived from torchyard_trainers.cvrp.problems.Problem")
    try:
        return found()
    except Exception as error:
        raise ConfigError(f"{at}: making it raised {type(error).__name__}: {error}; take no arguments") from error
