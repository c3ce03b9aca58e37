"""Pictures of tours on a plane as SVG. Imports no torch."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from torchyard_trainers.core.metrics.plots import COLOURS, MARGIN, TITLE, svg, text
from torchyard_trainers.cvrp.files.solutions import routes_of

_SIDE = 360


class Tour(NamedTuple):
    """A solution to draw: places with the depot first, demands, and nodes in order of visit."""

    title: str
    xy: Sequence[Sequence[float]]
    demand: Sequence[float]
    moves: Sequence[int]


def tours(pictures: Sequence[Tour]) -> str:
    """Draw tours, two in a row: a colour for each route, a disc for each demand, a square for the depot."""
    columns = min(2, len(pictures))
    rows = math.ceil(len(pictures) / columns)
    parts = [
        f'<g transform="translate({place % columns * _SIDE} {place // columns * (_SIDE + TITLE)})">{_tour(tour)}</g>'
        for place, tour in enumerate(pictures)
    ]
    return svg(columns * _SIDE, rows * (_SIDE + TITLE), parts)


def _tour(tour: Tour) -> str:
    xs, ys = zip(*tour.xy, strict=True)
    reach = max(max(xs) - min(xs), max(ys) - min(ys)) or 1.0
    scale = (_SIDE - 2 * MARGIN) / reach

    def at(node: int) -> tuple[float, float]:
        x, y = tour.xy[node]
        return MARGIN + (x - min(xs)) * scale, TITLE + _SIDE - MARGIN - (y - min(ys)) * scale

    parts = [text(MARGIN, 18, tour.title, bold=True)]
    for number, route in enumerate(routes_of(tour.moves)):
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(at, (0, *route, 0)))
        parts.append(
            f'<polyline points="{line}" fill="none" stroke="{COLOURS[number % len(COLOURS)]}" stroke-width="2"/>'
        )
    largest = max(tour.demand) or 1.0
    for node in range(1, len(tour.xy)):
        x, y = at(node)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{2 + 5 * tour.demand[node] / largest:.1f}" fill="#333"/>')
    x, y = at(0)
    parts.append(f'<rect x="{x - 7:.1f}" y="{y - 7:.1f}" width="14" height="14" fill="#c33"/>')
    return "".join(parts)
