"""Problems and solutions in the format of CVRPLIB (`.vrp`, `.sol`; vrp.galgos.inf.puc-rio.br). Imports no torch."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

from torchyard_trainers.core.exits import ConfigError

FIELD = "trainer.params.instances"
METRICS = ("EUC_2D", "CEIL_2D")
_KNOWN = re.compile(r"(?:optimal|best)(?: known)?(?: value| solution)?\s*:?\s*(\d+(?:\.\d+)?)", re.IGNORECASE)
_SECTIONS = ("NODE_COORD_SECTION", "DEMAND_SECTION", "DEPOT_SECTION")


@dataclass(frozen=True)
class Problem:
    """One file. Node 0 is the depot, whatever its number in the file; customers keep their order."""

    name: str
    metric: str  # EUC_2D: distances are rounded to whole numbers; CEIL_2D: rounded up
    xy: tuple[tuple[float, float], ...]
    demand: tuple[int, ...]  # 0 at the depot
    capacity: int
    best: float | None  # length of the best known solution, from `.sol` beside the file or from its comment

    def length(self, moves: Sequence[int]) -> int:
        """Give the length of a tour that starts and ends at the depot and comes home whenever it says 0."""
        stops = [0, *moves, 0]
        return sum(self._distance(a, b) for a, b in pairwise(stops))

    def _distance(self, a: int, b: int) -> int:
        exact = math.dist(self.xy[a], self.xy[b])
        return math.ceil(exact) if self.metric == "CEIL_2D" else int(exact + 0.5)


def find(path: Path) -> list[Problem]:
    """Read a `.vrp` file, or all that lie in a folder, by name.

    Raises:
        ConfigError: nothing is there, or a file cannot be read as a problem of this kind.
    """
    files = sorted(path.glob("*.vrp")) if path.is_dir() else [path]
    if not files:
        raise ConfigError(f"{FIELD}: {path} holds no .vrp file")
    return [read(file) for file in files]


def read(path: Path) -> Problem:
    """Read one `.vrp` file, and `.sol` of the same name if there is one.

    Raises:
        ConfigError: naming file, line and field.
    """
    header, sections = _parse(path)
    kind = header.get("TYPE", "CVRP")
    if kind != "CVRP":
        raise ConfigError(f"{FIELD}: {path}: TYPE: {kind} is not supported; give CVRP")
    if (metric := header.get("EDGE_WEIGHT_TYPE", "")) not in METRICS:
        raise ConfigError(
            f"{FIELD}: {path}: EDGE_WEIGHT_TYPE: {metric!r} has no plane to look at; give {' or '.join(METRICS)}"
        )
    for name in ("DISTANCE", "SERVICE_TIME"):
        if float(header.get(name, 0)) != 0:
            raise ConfigError(f"{FIELD}: {path}: {name}: {header[name]}: routes of limited length are not supported")
    count = _whole(path, header, "DIMENSION", least=3)
    capacity = _whole(path, header, "CAPACITY", least=1)
    places = _by_node(path, "NODE_COORD_SECTION", sections, count, 2)
    demands = _by_node(path, "DEMAND_SECTION", sections, count, 1)
    depot = _depot(path, sections, count)
    order = [depot, *(node for node in range(1, count + 1) if node != depot)]
    demand = tuple(int(demands[node][0]) for node in order)
    if demand[0] != 0:
        raise ConfigError(f"{FIELD}: {path}: DEMAND_SECTION: the depot, node {depot}, has demand {demand[0]}; give 0")
    for node, wanted in zip(order[1:], demand[1:], strict=True):
        if not 0 < wanted <= capacity:
            raise ConfigError(
                f"{FIELD}: {path}: DEMAND_SECTION: node {node}: {wanted} is not between 1 and CAPACITY {capacity}"
            )
    xy = tuple((places[node][0], places[node][1]) for node in order)
    found = _KNOWN.search(header.get("COMMENT", ""))
    problem = Problem(header.get("NAME", path.stem), metric, xy, demand, capacity, float(found[1]) if found else None)
    solution = path.with_suffix(".sol")
    if not solution.exists():
        return problem
    return Problem(problem.name, metric, xy, demand, capacity, read_solution(solution, problem))


def read_solution(path: Path, problem: Problem) -> float:
    """Give the length of a `.sol` file's routes, whose customers are numbered from 1 in the order of the problem.

    Raises:
        ConfigError: it is no solution of the problem, or claims another length.
    """
    routes, claimed = [], None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            if line.lower().startswith("route"):
                routes.append([int(word) for word in line.partition(":")[2].split()])
            elif line.lower().startswith("cost"):
                claimed = float(line.split()[1])
        except (ValueError, IndexError) as error:
            raise ConfigError(f"{FIELD}: {path}:{number}: {line[:60]!r} is no route and no cost") from error
    seen = sorted(customer for route in routes for customer in route)
    if seen != list(range(1, len(problem.demand))):
        raise ConfigError(f"{FIELD}: {path}: its routes do not see each customer of {problem.name} exactly once")
    for number, route in enumerate(routes, 1):
        if (load := sum(problem.demand[customer] for customer in route)) > problem.capacity:
            raise ConfigError(f"{FIELD}: {path}: route {number} carries {load}, capacity is {problem.capacity}")
    length = problem.length([stop for route in routes for stop in (*route, 0)])
    if claimed is not None and abs(claimed - length) > 0.5:
        raise ConfigError(f"{FIELD}: {path}: Cost {claimed:g}, but its routes are {length} long under {problem.metric}")
    return float(length)


def routes_of(moves: Sequence[int]) -> list[list[int]]:
    """Part a tour at the depot, node 0; a stay there is no route."""
    return [list(route) for away, route in groupby(moves, key=bool) if away]


def write_solution(problem: Problem, moves: Sequence[int]) -> str:
    """Give a tour as the text of a `.sol` file."""
    lines = [f"Route #{number}: {' '.join(map(str, route))}" for number, route in enumerate(routes_of(moves), 1)]
    return "\n".join([*lines, f"Cost {problem.length(moves)}", ""])


def _parse(path: Path) -> tuple[dict[str, str], dict[str, list[tuple[int, list[str]]]]]:
    """Split a file into its header and, for each section, its lines: number and words."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{FIELD}: {path}: {error}; give a readable .vrp file or a folder of them") from error
    header: dict[str, str] = {}
    sections: dict[str, list[tuple[int, list[str]]]] = {}
    current: str | None = None
    for number, line in _filled(lines):
        word = line.split()[0].rstrip(":")
        if word == "EOF":
            break
        if word.endswith("_SECTION"):
            if word not in _SECTIONS:
                raise ConfigError(f"{FIELD}: {path}:{number}: {word} is not supported; use {', '.join(_SECTIONS)}")
            current = word
            sections[current] = []
        elif current is not None:
            sections[current].append((number, line.split()))
        else:
            name, _, value = line.partition(":")
            header[name.strip().upper()] = value.strip()
    return header, sections


def _filled(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    return ((number, line.strip()) for number, line in enumerate(lines, 1) if line.strip())


def _whole(path: Path, header: dict[str, str], name: str, *, least: int) -> int:
    text = header.get(name, "")
    if not text.isdecimal() or int(text) < least:
        raise ConfigError(f"{FIELD}: {path}: {name}: {text!r} is no whole number from {least}")
    return int(text)


def _by_node(
    path: Path, name: str, sections: dict[str, list[tuple[int, list[str]]]], count: int, width: int
) -> dict[int, list[float]]:
    """Read a section of one line a node: its number and `width` values."""
    found: dict[int, list[float]] = {}
    for number, words in sections.get(name, []):
        try:
            node, values = int(words[0]), [float(word) for word in words[1:]]
        except ValueError as error:
            raise ConfigError(f"{FIELD}: {path}:{number}: {name}: {' '.join(words)[:60]!r} holds no numbers") from error
        if len(values) != width or not all(map(math.isfinite, values)):
            raise ConfigError(f"{FIELD}: {path}:{number}: {name}: give a node and {width} finite values")
        found[node] = values
    if sorted(found) != list(range(1, count + 1)):
        raise ConfigError(f"{FIELD}: {path}: {name}: has {len(found)} nodes, not 1 to {count} as DIMENSION says")
    return found


def _depot(path: Path, sections: dict[str, list[tuple[int, list[str]]]], count: int) -> int:
    depots = [int(word) for _, words in sections.get("DEPOT_SECTION", []) for word in words if word != "-1"]
    if len(depots) != 1 or not 1 <= depots[0] <= count:
        raise ConfigError(f"{FIELD}: {path}: DEPOT_SECTION: {depots or 'nothing'}; give one node, then -1")
    return depots[0]
