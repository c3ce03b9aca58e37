"""Pictures as SVG: tours on a plane and curves over steps. Imports no torch."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

from torchyard_trainers.cvrp.solutions import routes_of

COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bb5566", "#004488", "#ddaa33", "#117733")
_SIDE, _MARGIN, _TITLE = 360, 24, 28
_WIDE, _HIGH, _LEFT = 720, 320, 52


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
        f'<g transform="translate({place % columns * _SIDE} {place // columns * (_SIDE + _TITLE)})">{_tour(tour)}</g>'
        for place, tour in enumerate(pictures)
    ]
    return _svg(columns * _SIDE, rows * (_SIDE + _TITLE), parts)


def curve(title: str, points: Sequence[tuple[float, float]], levels: Mapping[str, float]) -> str:
    """Draw values over steps, and constants to compare with as dashed lines."""
    values = [value for _, value in points] + list(levels.values())
    low, high = min(values), max(values)
    reach = (high - low) or 1.0
    low, high = low - 0.05 * reach, high + 0.05 * reach
    first, last = points[0][0], max(points[-1][0], points[0][0] + 1)
    bottom, right = _HIGH - _MARGIN, _WIDE - _MARGIN

    def at(step: float, value: float) -> str:
        x = _LEFT + (step - first) / (last - first) * (right - _LEFT)
        return f"{x:.1f},{bottom - (value - low) / (high - low) * (bottom - _TITLE):.1f}"

    parts = [_text(_LEFT, 18, title, bold=True)]
    for tick in range(5):
        value = low + (high - low) * tick / 4
        x, y = at(first, value).split(",")
        parts.append(f'<path d="M{x} {y}H{right}" stroke="#ddd"/>')
        parts.append(_text(_LEFT - 6, float(y) + 4, f"{value:.2f}", anchor="end"))
    ends = ((_LEFT, first), (right, last))
    parts += [_text(x, _HIGH - 8, f"{step:g}", anchor="middle") for x, step in ends]
    for place, (name, value) in enumerate(levels.items()):
        colour = COLOURS[(place + 1) % len(COLOURS)]
        x, y = at(first, value).split(",")
        parts.append(f'<path d="M{x} {y}H{right}" stroke="{colour}" stroke-dasharray="6 4"/>')
        parts.append(_text(right, float(y) - 4, f"{name} {value:.3f}", anchor="end", colour=colour))
    line = " ".join(at(step, value) for step, value in points)
    parts.append(f'<polyline points="{line}" fill="none" stroke="{COLOURS[0]}" stroke-width="2"/>')
    return _svg(_WIDE, _HIGH, parts)


def _tour(tour: Tour) -> str:
    xs, ys = zip(*tour.xy, strict=True)
    reach = max(max(xs) - min(xs), max(ys) - min(ys)) or 1.0
    scale = (_SIDE - 2 * _MARGIN) / reach

    def at(node: int) -> tuple[float, float]:
        x, y = tour.xy[node]
        return _MARGIN + (x - min(xs)) * scale, _TITLE + _SIDE - _MARGIN - (y - min(ys)) * scale

    parts = [_text(_MARGIN, 18, tour.title, bold=True)]
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


def _text(x: float, y: float, text: str, *, anchor: str = "start", colour: str = "#333", bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{colour}"{weight}>{escape(text)}</text>'


def _svg(width: int, height: int, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    ground = '<rect width="100%" height="100%" fill="white"/>'
    return f'{head} font-family="sans-serif" font-size="12">{ground}{"".join(parts)}</svg>\n'
