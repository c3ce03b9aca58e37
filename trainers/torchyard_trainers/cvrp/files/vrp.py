"""Reads a `.vrp` file of CVRPLIB; rejects unsupported content. Does not import torch."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.cvrp.files.problem import METRICS, Problem
from torchyard_trainers.cvrp.files.text import FIELD, lines_of, printable, real, whole

# Routes use float32 loads: whole numbers are exact up to here.
MOST_CAPACITY = 2**24
# A distance of two such places is far from overflow, and exact to a millionth in float64.
MOST_COORDINATE = 1e9
_KNOWN = re.compile(
    r"(?:optimal|best)(?: known)?(?: value| solution)?\s*:?\s*([0-9]{1,15}(?:\.[0-9]{1,15})?)", re.IGNORECASE
)
_SECTIONS = ("NODE_COORD_SECTION", "DEMAND_SECTION", "DEPOT_SECTION")


def read(path: Path) -> Problem:
    """Read one file, in its metric; the best known length comes from its comment.

    Raises:
        ConfigError: naming file, line and field.
    """
    return _problem(_parse(path))


class _Text(NamedTuple):
    """A file in parts, each with the number of its line."""

    path: Path
    header: Mapping[str, tuple[int, str]]
    sections: Mapping[str, list[tuple[int, list[str]]]]

    def refuse(self, name: str, complaint: str, number: int | None = None) -> NoReturn:
        """Raise ConfigError naming the file, the line if known, and the field or section."""
        line = "" if number is None else f":{number}"
        raise ConfigError(f"{FIELD}: {self.path}{line}: {name}: {complaint}")

    def value(self, name: str, default: str | None = None) -> tuple[int | None, str]:
        """Return line and text of a header field."""
        if name in self.header:
            return self.header[name]
        if default is None:
            self.refuse(name, f"is missing; add a line `{name} : VALUE`")
        return None, default


def _parse(path: Path) -> _Text:
    """Split a file into its header and, for each section, its lines: number and words."""
    header: dict[str, tuple[int, str]] = {}
    sections: dict[str, list[tuple[int, list[str]]]] = {}
    found = _Text(path, header, sections)
    current: str | None = None
    for number, line in _filled(lines_of(path)):
        word = line.split()[0].rstrip(":").upper()
        if word == "EOF":
            break
        if word.endswith("_SECTION"):
            if word not in _SECTIONS:
                found.refuse(printable(word), f"is not supported; use {', '.join(_SECTIONS)}", number)
            if word in sections:
                found.refuse(word, "is there twice; leave one of them out", number)
            if rest := line[len(word) :].strip(": \t"):
                found.refuse(word, f"{printable(rest)!r} stands behind it; put it on lines of its own", number)
            current = word
            sections[current] = []
        elif current is not None:
            sections[current].append((number, line.split()))
        else:
            name, _, value = (part.strip() for part in line.partition(":"))
            name = name.upper()
            if name in header and name != "COMMENT":
                found.refuse(printable(name), f"{printable(value)!r}: is there twice; leave one of them out", number)
            header[name] = (number, f"{header[name][1]} {value}" if name in header else value)
    return found


def _problem(text: _Text) -> Problem:
    number, kind = text.value("TYPE", "CVRP")
    if kind != "CVRP":
        text.refuse("TYPE", f"{printable(kind)} is not supported; give CVRP", number)
    number, metric = text.value("EDGE_WEIGHT_TYPE")
    if metric not in METRICS:
        text.refuse(
            "EDGE_WEIGHT_TYPE", f"{printable(metric)!r} has no plane to look at; give {' or '.join(METRICS)}", number
        )
    for name in ("DISTANCE", "SERVICE_TIME"):
        number, value = text.value(name, "0")
        if real(value) is None:
            text.refuse(name, f"{printable(value)!r} is no number; give 0 or leave the line out", number)
        if real(value) != 0:
            text.refuse(name, f"{value}: routes of limited length are not supported; give problems without it", number)
    count = _header_number(text, "DIMENSION", least=3)
    capacity = _header_number(text, "CAPACITY", least=1)
    if capacity > MOST_CAPACITY:
        fix = "divide it and all demands by one number"
        complaint = f"{capacity} is more than {MOST_CAPACITY}, up to which loads are exact; {fix}"
        text.refuse("CAPACITY", complaint, text.value("CAPACITY")[0])
    places = _places(text, count)
    depot = _depot(text, count)
    demands = _demands(text, count, depot, capacity)
    order = [depot, *(node for node in range(1, count + 1) if node != depot)]
    known = _KNOWN.search(text.value("COMMENT", "")[1])
    best = float(known[1]) if known else None
    stem = text.path.stem
    return Problem(
        name=printable(text.value("NAME", "")[1] or stem),
        metric=metric,
        xy=tuple(places[node] for node in order),
        demand=tuple(demands[node] for node in order),
        capacity=capacity,
        best=best,
        slug=re.sub(r"[^A-Za-z0-9._-]", "_", stem)[:100].strip(".") or "problem",
    )


def _header_number(text: _Text, name: str, *, least: int) -> int:
    number, value = text.value(name)
    found = whole(value)
    if found is None or found < least:
        text.refuse(name, f"{printable(value)!r} is no whole number from {least} below 10**15; give one", number)
    return found


def _places(text: _Text, count: int) -> dict[int, tuple[float, float]]:
    found = {}
    name = "NODE_COORD_SECTION"
    for node, (number, words) in _by_node(text, name, count).items():
        x, y = map(real, words[1:]) if len(words) == 3 else (None, None)
        if x is None or y is None:
            text.refuse(name, f"{printable(' '.join(words))!r}: give a node and 2 finite numbers", number)
        if max(abs(x), abs(y)) > MOST_COORDINATE:
            text.refuse(name, f"node {node}: {x:g} {y:g} is beyond {MOST_COORDINATE:g}; scale all places down", number)
        found[node] = (x, y)
    return found


def _demands(text: _Text, count: int, depot: int, capacity: int) -> dict[int, int]:
    found = {}
    name = "DEMAND_SECTION"
    for node, (number, words) in _by_node(text, name, count).items():
        wanted = whole(words[1]) if len(words) == 2 else None
        if wanted is None:
            text.refuse(name, f"{printable(' '.join(words))!r}: give a node and 1 whole number", number)
        if node == depot and wanted != 0:
            text.refuse(name, f"the depot, node {depot}, has demand {wanted}; give 0", number)
        if node != depot and not 0 < wanted <= capacity:
            text.refuse(name, f"node {node}: {wanted} is not between 1 and CAPACITY {capacity}; change one", number)
        found[node] = wanted
    return found


def _by_node(text: _Text, name: str, count: int) -> dict[int, tuple[int, list[str]]]:
    """Return the lines of a section, number and words, by their first word: each node has one."""
    if name not in text.sections:
        text.refuse(name, f"is missing; add it, with a line for each of {count} nodes")
    found: dict[int, tuple[int, list[str]]] = {}
    for number, words in text.sections[name]:
        node = whole(words[0])
        if node is None:
            text.refuse(name, f"{printable(' '.join(words))!r} does not begin with a node; give one", number)
        if not 1 <= node <= count:
            text.refuse(name, f"node {node} is not between 1 and DIMENSION {count}; change one", number)
        if node in found:
            text.refuse(name, f"node {node} is there twice, first in line {found[node][0]}; leave one out", number)
        found[node] = (number, words)
    if len(found) != count:
        text.refuse(name, f"has {len(found)} nodes, not 1 to {count} as DIMENSION says; add those that are missing")
    return found


def _depot(text: _Text, count: int) -> int:
    name = "DEPOT_SECTION"
    words = [(number, word) for number, words in text.sections.get(name, []) for word in words]
    if words and words[-1][1] == "-1":
        words.pop()
    if len(words) != 1:
        given = " ".join(word for _, word in words)
        text.refuse(name, f"{printable(given)!r}; give one node, then -1")
    ((number, word),) = words
    node = whole(word)
    if node is None or not 1 <= node <= count:
        text.refuse(name, f"{printable(word)!r} is no node between 1 and DIMENSION {count}; give one", number)
    return node


def _filled(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    return ((number, line.strip()) for number, line in enumerate(lines, 1) if line.strip())
