"""The best known tours of a set of instances, by PyVRP: computed once, and kept by the digest of the instances."""

import hashlib
import json
import math
import os
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchyard_trainers.core.checkpoints.commits import write_atomically
from torchyard_trainers.core.evaluation import over_ranks
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.json_text import parse_json
from torchyard_trainers.core.workload import Session
from torchyard_trainers.cvrp.evaluation import EVALUATION, make
from torchyard_trainers.cvrp.instances import Instances, distances
from torchyard_trainers.cvrp.params import Settings
from torchyard_trainers.cvrp.problems import Cvrp, Problem, open_problem

# The solver takes whole numbers: coordinates in ten-thousandths of the square.
UNIT = 10_000
# Of 10 and of 20 customers, three times as many change the mean by less than 0.01 %.
ITERATIONS_PER_CUSTOMER = 10


def check_installed() -> None:
    """Check that the solver can be imported.

    Raises:
        ConfigError: it is not installed.
    """
    if find_spec("pyvrp") is None:
        raise ConfigError("trainer.params.solver: pyvrp is not installed; install it: pip install 'torchyard[solvers]'")


def solver_cost(session: Session, settings: Settings) -> float:
    """Return the mean length of PyVRP's tours of the evaluation set. Collective."""
    count = settings.eval_instances
    digest = session.world.from_leader(lambda: _digest(make(settings, EVALUATION, torch.arange(count))))
    path = _folder() / f"{digest}.json"
    known = session.world.from_leader(lambda: _read(path))
    problem = open_problem(settings.problem)
    if known is not None:
        return known

    def lengths(positions: list[int]) -> Tensor:
        return solve_all(make(settings, EVALUATION, torch.tensor(positions)), problem).to(session.world.device)

    mean = float(over_ranks(session, lengths, count, at_once=settings.eval_batch, casts=False).mean())
    session.world.from_leader(lambda: _write(path, mean))
    return mean


def solve_all(instances: Instances, problem: Problem | None = None) -> Tensor:
    """Return the length of PyVRP's tour of each of B instances on the CPU, [B] float64.

    Times are rounded so that a tour that is in time for the solver is in time.
    """
    from pyvrp import Client, Depot, Location, ProblemData, VehicleType, solve
    from pyvrp.stop import MaxIterations

    lengths = []
    customers = instances.demand.shape[1] - 1
    problem = Cvrp() if problem is None else problem
    capacity, vehicles = int(instances.capacity), problem.vehicles or customers
    windows = problem.windows(instances)
    times: list[Any] = [None] * len(instances.xy) if windows is None else (windows.double() * UNIT).tolist()
    exact = distances(instances._replace(xy=instances.xy.double()))
    rows = zip(instances.xy.tolist(), instances.demand.int().tolist(), exact.numpy(), times, strict=True)
    for xy, demand, distance, clock in rows:
        matrix = np.rint(distance * UNIT).astype(np.int64)
        hours = [{} if clock is None else _hours(*clock[place]) for place in range(customers + 1)]
        end = {} if clock is None else {"tw_late": math.floor(clock[0][1])}
        data = ProblemData(
            [Location(x * UNIT, y * UNIT) for x, y in xy],
            [Client(place, delivery=[demand[place]], **hours[place]) for place in range(1, customers + 1)],
            [Depot(0)],
            [VehicleType(vehicles, capacity=[capacity], **end)],
            [matrix],
            [np.zeros_like(matrix) if clock is None else np.ceil(distance * UNIT).astype(np.int64)],
        )
        stop = MaxIterations(ITERATIONS_PER_CUSTOMER * customers)
        result = solve(data, stop, seed=0, collect_stats=False, display=False)
        assert result.is_feasible(), "each customer can have a vehicle of its own"
        lengths.append(result.cost() / UNIT)
    return torch.tensor(lengths, dtype=torch.float64)


def _hours(opens: float, closes: float, service: float) -> dict[str, int]:
    """Return the times of a customer, in whole units."""
    return {"tw_early": math.ceil(opens), "tw_late": math.floor(closes), "service_duration": math.ceil(service)}


def _digest(instances: Instances) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in (part for part in instances if part is not None):
        digest.update(part.numpy().tobytes())
    digest.update(f"pyvrp {version('pyvrp')}, {ITERATIONS_PER_CUSTOMER}, {UNIT}".encode())
    return digest.hexdigest()


def _folder() -> Path:
    """Return the folder of results, in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchyard" / "cvrp"


def _read(path: Path) -> float | None:
    """Return a result of an earlier run; None if there is none, or none that can be read."""
    try:
        return float(parse_json(path.read_text())["mean"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, mean: float) -> None:
    """Keep a result for other runs, if the cache can be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({"mean": mean}))
    except OSError:
        return
