"""Curves over steps as SVG. Imports no torch."""

import itertools
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from xml.sax.saxutils import escape

from torchyard_trainers.core.checkpoints.commits import write_atomically
from torchyard_trainers.core.json_text import number_of, parse_json

COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bb5566", "#004488", "#ddaa33", "#117733")
MARGIN, TITLE = 24, 28
MARK = "\u00d7"
NONE: Mapping[str, float] = MappingProxyType({})
_WIDE, _HIGH, _LEFT = 720, 320, 52


def read_curve(path: Path, metric: str) -> Sequence[tuple[float, float]]:
    """Return a metric by step from `metrics.jsonl`; the last line of a step counts, a truncated line does not."""
    values: dict[float, float] = {}
    lines = path.read_bytes().splitlines() if path.exists() else []
    for line in lines:
        with suppress(ValueError, KeyError, TypeError):
            entry = parse_json(line)
            step, value = number_of(entry["step"]), number_of(entry[metric])
            if step is not None and value is not None:
                values[step] = value
    return sorted(values.items())


def write_curve(folder: Path, curves: Path, metric: str, title: str) -> list[Path]:
    """Write `curve.svg` of a metric; return it, or nothing if fewer than two values are known.

    Args:
        folder: exists.
        curves: `metrics.jsonl` of the run; it may be missing.
        metric: its name.
        title: of the picture.
    """
    points = read_curve(curves, metric)
    if len(points) < 2:
        return []
    write_atomically(folder / "curve.svg", curve(title, points))
    return [folder / "curve.svg"]


def curve(title: str, points: Sequence[tuple[float, float]], levels: Mapping[str, float] = NONE) -> str:
    """Draw values over steps, and constants to compare with as dashed lines.

    Where values are not finite, the line has a gap, with marks at the bottom and their number in the title.
    """
    marked = [step for step, value in points if not math.isfinite(value)]
    values = [value for value in (*(value for _, value in points), *levels.values()) if math.isfinite(value)] or [0.0]
    low, high = min(values), max(values)
    reach = (high - low) or 1.0
    low, high = low - 0.05 * reach, high + 0.05 * reach
    first, last = points[0][0], max(points[-1][0], points[0][0] + 1)
    bottom, right = _HIGH - MARGIN, _WIDE - MARGIN

    def at(step: float, value: float) -> str:
        x = _LEFT + (step - first) / (last - first) * (right - _LEFT)
        return f"{x:.1f},{bottom - (value - low) / (high - low) * (bottom - TITLE):.1f}"

    said = f"; {len(marked)} of {len(points)} values not finite" if marked else ""
    parts = [text(_LEFT, 18, title + said, bold=True)]
    for tick in range(5):
        value = low + (high - low) * tick / 4
        x, y = at(first, value).split(",")
        parts.append(f'<path d="M{x} {y}H{right}" stroke="#ddd"/>')
        parts.append(text(_LEFT - 6, float(y) + 4, f"{value:.2f}", anchor="end"))
    ends = ((_LEFT, first), (right, last))
    parts += [text(x, _HIGH - 8, f"{step:g}", anchor="middle") for x, step in ends]
    for place, (name, value) in enumerate(levels.items()):
        colour = COLOURS[(place + 1) % len(COLOURS)]
        x, y = at(first, value).split(",")
        parts.append(f'<path d="M{x} {y}H{right}" stroke="{colour}" stroke-dasharray="6 4"/>')
        parts.append(text(right, float(y) - 4, f"{name} {value:.3f}", anchor="end", colour=colour))
    for finite, run in itertools.groupby(points, key=lambda point: math.isfinite(point[1])):
        if finite:
            line = " ".join(at(step, value) for step, value in run)
            parts.append(f'<polyline points="{line}" fill="none" stroke="{COLOURS[0]}" stroke-width="2"/>')
    for step in marked:
        x, y = at(step, low).split(",")
        parts.append(text(float(x), float(y), MARK, anchor="middle", colour=COLOURS[1]))
    return svg(_WIDE, _HIGH, parts)


def text(x: float, y: float, content: str, *, anchor: str = "start", colour: str = "#333", bold: bool = False) -> str:
    """Return a text that begins, ends or has its middle at a point (pixels)."""
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{colour}"{weight}>{escape(content)}</text>'


def svg(width: int, height: int, parts: Sequence[str]) -> str:
    """Return a document of a size in pixels."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    ground = '<rect width="100%" height="100%" fill="white"/>'
    return f'{head} font-family="sans-serif" font-size="12">{ground}{"".join(parts)}</svg>\n'
