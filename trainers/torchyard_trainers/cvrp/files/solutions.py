"""Solutions in the format of CVRPLIB (`.sol`), read against their problem and written. Imports no torch."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.cvrp.files.problem import REAL, Problem
from torchyard_trainers.cvrp.files.text import FIELD, lines_of, printable, real, whole


class Known(NamedTuple):
    """How long a solution is, and in which metric (see `Problem`)."""

    length: float
    metric: str


def read(path: Path, problem: Problem) -> Known:
    """Measure the routes of a file, whose customers are numbered from 1 in the order of the problem.

    The classic sets (CMT, Golden, Tai) say EUC_2D and give costs of real distances: a cost that is the length of the
    routes without rounding means that the problem is measured so.

    Raises:
        ConfigError: it is not a solution of the problem, or states another length.
    """
    routes, claimed = _parse(path)
    seen = sorted(customer for route in routes for customer in route)
    if seen != list(range(1, len(problem.demand))):
        raise ConfigError(
            f"{FIELD}: {path}: its routes do not see each customer of {problem.name} exactly once; give a solution of "
            f"this problem with customers 1 to {len(problem.demand) - 1}, or leave the file out"
        )
    for number, route in enumerate(routes, 1):
        if (load := sum(problem.demand[customer] for customer in route)) > problem.capacity:
            raise ConfigError(
                f"{FIELD}: {path}: route {number} carries {load}, capacity is {problem.capacity}; give a solution of "
                "this problem, or leave the file out"
            )
    moves = [stop for route in routes for stop in (*route, 0)]
    length = problem.length(moves)
    if claimed is None or float(claimed) == length:
        return Known(length, problem.metric)
    exact = replace(problem, metric=REAL).length(moves)
    # Half a unit of the last decimal that is given, if any is: a whole cost is one of whole distances.
    decimals = len(claimed.partition(".")[2])
    if abs(float(claimed) - exact) <= (0.5 * 10.0**-decimals if decimals else 0) + 1e-6:
        return Known(exact, REAL)
    raise ConfigError(
        f"{FIELD}: {path}: Cost {claimed}, but its routes are {problem.written(length)} long under {problem.metric} "
        f"and {exact:.2f} in real distances; correct the cost, or leave the file out"
    )


def routes_of(moves: Sequence[int]) -> list[list[int]]:
    """Split a tour at the depot, node 0; skip empty routes."""
    return [list(route) for away, route in groupby(moves, key=bool) if away]


def write(problem: Problem, moves: Sequence[int]) -> str:
    """Return a tour as the text of a `.sol` file."""
    lines = [f"Route #{number}: {' '.join(map(str, route))}" for number, route in enumerate(routes_of(moves), 1)]
    return "\n".join([*lines, f"Cost {problem.written(problem.length(moves))}", ""])


def _parse(path: Path) -> tuple[list[list[int]], str | None]:
    """Return the customers of each route, and the cost as it is written."""
    routes: list[list[int]] = []
    claimed: str | None = None
    for number, line in enumerate(lines_of(path), 1):
        words = line.strip().lower().replace(":", " : ", 1).split()
        if not words:
            continue
        if words[0].startswith("route"):
            customers = [whole(word) for word in line.partition(":")[2].split()]
            if None in customers or ":" not in line:
                raise _refusal(path, number, line, "no route; give `Route #1: CUSTOMER CUSTOMER ...`")
            routes.append([customer for customer in customers if customer is not None])
        elif words[0] == "cost":
            value = words[-1]
            if len([word for word in words if word != ":"]) != 2 or real(value) is None:
                raise _refusal(path, number, line, "no cost; give `Cost NUMBER`")
            if claimed is not None:
                raise _refusal(path, number, line, "a second cost; leave one out")
            claimed = value
    return routes, claimed


def _refusal(path: Path, number: int, line: str, complaint: str) -> ConfigError:
    return ConfigError(f"{FIELD}: {path}:{number}: {printable(line)!r} is {complaint}")
