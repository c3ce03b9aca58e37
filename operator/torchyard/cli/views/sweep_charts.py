"""Charts of a sweep as SVG: its history and parallel coordinates (pure)."""

import math
import sys
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from msgspec import Struct

from torchyard.api.formatting import clip
from torchyard.api.values import figure, plural
from torchyard.sweeps.resource import TrainingSweep
from torchyard.sweeps.results import Result, best_so_far, text_of
from torchyard.sweeps.space import short_names
from torchyard.sweeps.spec import Parameter

COLOURS = {"complete": "#2563a8", "stopped": "#c9a227", "failed": "#c0392b", "running": "#888", "suspended": "#888"}
BEST = "#1f9d6b"
MARK = "\u00d7"
WIDTH, HEIGHT = 860, 280
LEFT, RIGHT, TOP, BOTTOM = 70, 30, 24, 40
AXIS_WIDTH = 130
"""Pixels between two parallel axes, at least: a chart of many is scrolled."""
NAME, LABEL = 16, 14
"""Characters of the name of an axis, and of a label: what has more is clipped, and whole in a tooltip."""
ABSENT = -0.14
"""Place on the axis of a parameter for trials that do not have it."""
WIDE_RANGE = 1000.0
"""Positive values that differ by more than this factor are shown on a logarithmic scale."""


class Axis(Struct, frozen=True, kw_only=True):
    """A scale from values to 0 (its low end) to 1."""

    name: str
    share: Callable[[Any], float]
    ticks: list[tuple[float, str]]
    """Places and labels."""


def history(sweep: TrainingSweep, results: Sequence[Result]) -> str:
    """Return the values of the trials by number, and the best one so far of those that trained to their end."""
    points = [(each, each.value) for each in results if each.value is not None]
    if not points:
        return "<p>No trial has reported a value.</p>"
    axis = _value_axis(sweep.spec.objective.metric, [value for _, value in points])
    last = max(1, *(each.number for each in results))

    def across(number: int) -> float:
        return LEFT + number / last * (WIDTH - LEFT - RIGHT)

    parts = [_line(LEFT, WIDTH - RIGHT, _down(share), _down(share), "#eee") for share, _ in axis.ticks]
    parts += [_text(LEFT - 8, _down(share) + 4, label, anchor="end") for share, label in axis.ticks]
    numbers = {int(at) for at in _steps(0, last) if at == int(at) and at < 0.95 * last} | {results[-1].number}
    parts += [_text(across(number), HEIGHT - BOTTOM + 18, str(number)) for number in sorted(numbers)]
    parts += [_text(WIDTH - RIGHT, HEIGHT - 4, "trial", anchor="end"), _text(LEFT, 12, axis.name, anchor="start")]
    parts += [_best_line(sweep, results, across, axis)]
    for each, value in points:
        title = f"<title>{escape(each.name)}: {figure(value)} ({escape(each.outcome)} at {each.percent} %)</title>"
        at = f'cx="{across(each.number):.1f}" cy="{_down(axis.share(value)):.1f}"'
        colour = BEST if each.best else COLOURS[each.outcome]
        parts.append(f'<circle {at} r="{5 if each.best else 3.5}" fill="{colour}">{title}</circle>')
    marks = [each for each in results if each.non_finite is not None]
    parts += [_mark(each, across(each.number)) for each in marks]
    shown = {each.outcome for each, _ in points}
    said = f"<p>{MARK} {plural(len(marks), 'trial')} whose value is not finite.</p>" if marks else ""
    return _svg(WIDTH, "".join(parts)) + said + _legend([each for each in COLOURS if each in shown], sweep)


def coordinates(sweep: TrainingSweep, results: Sequence[Result]) -> str:
    """Return a line for each trial that trained to its end, across an axis for each parameter and the objective."""
    shown = [(each, each.value) for each in results if each.outcome == "complete" and each.value is not None]
    if not shown:
        return "<p>No trial has trained to its end.</p>"
    names = short_names(sweep.spec.parameters)
    axes = [_axis(parameter, names[parameter.path]) for parameter in sweep.spec.parameters]
    objective = _value_axis(sweep.spec.objective.metric, [value for _, value in shown])
    width = max(WIDTH, LEFT + RIGHT + AXIS_WIDTH * len(axes) + 40)
    inside = width - LEFT - RIGHT - 40

    def across(index: int) -> float:
        return LEFT + index / len(axes) * inside

    parts = []
    for each, value in sorted(shown, key=lambda item: item[0].best):
        shares = [
            axis.share(each.parameters[parameter.path]) if parameter.path in each.parameters else ABSENT
            for axis, parameter in zip(axes, sweep.spec.parameters, strict=True)
        ]
        shares.append(objective.share(value))
        line = " ".join(f"{across(index):.1f},{_down(share):.1f}" for index, share in enumerate(shares))
        title = f"<title>{escape(each.name)}: {figure(value)}</title>"
        colour, thickness, opacity = (BEST, 3, 1) if each.best else (COLOURS["complete"], 1, 0.45)
        parts.append(
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="{thickness}" '
            f'stroke-opacity="{opacity}">{title}</polyline>'
        )
    absent = [bool(parameter.conditions) for parameter in sweep.spec.parameters] + [False]
    for index, axis in enumerate([*axes, objective]):
        x = across(index)
        parts.append(_line(x, x, _down(0), _down(1), "#888"))
        parts.append(_text(x, 12, axis.name, limit=NAME, bold=True))
        ticks = [*axis.ticks, *([(ABSENT, "none")] if absent[index] else [])]
        parts += [_text(x + 4, _down(share) + 4, label, anchor="start", limit=LABEL) for share, label in ticks]
    return _svg(width, "".join(parts))


def _best_line(sweep: TrainingSweep, results: Sequence[Result], across: Callable[[int], float], axis: Axis) -> str:
    complete = [each.number for each in results if each.outcome == "complete" and each.value is not None]
    corners: list[tuple[float, float]] = []
    for number, value in zip(complete, best_so_far(sweep, results), strict=True):
        if corners:
            corners.append((across(number), corners[-1][1]))
        corners.append((across(number), _down(axis.share(value))))
    if corners:
        corners.append((across(results[-1].number), corners[-1][1]))
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    return f'<polyline points="{line}" fill="none" stroke="{BEST}" stroke-width="2"/>'


def _mark(result: Result, x: float) -> str:
    """Return the mark of a trial whose value is not finite, at the bottom of the chart."""
    title = f"<title>{escape(result.name)}: {result.non_finite} ({escape(result.outcome)})</title>"
    colour = COLOURS[result.outcome]
    return f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM:.0f}" text-anchor="middle" fill="{colour}">{MARK}{title}</text>'


def _legend(outcomes: Sequence[str], sweep: TrainingSweep) -> str:
    means = {"stopped": "stopped early, with the value at its rung", "complete": "trained to its end"}
    items = [(COLOURS[each], means.get(each, each)) for each in outcomes]
    items.append((BEST, f"best so far ({sweep.spec.objective.goal})"))
    return "<p class=legend>" + "".join(
        f'<span><svg width="10" height="10"><rect width="10" height="10" fill="{colour}"/></svg> {escape(text)}</span>'
        for colour, text in items
    ) + "</p>"  # fmt: skip


def _axis(parameter: Parameter, name: str) -> Axis:
    bounds = parameter.float_ or parameter.int_
    if bounds is None:
        most = max(1, len(parameter.choice) - 1)
        every = 1 + len(parameter.choice) // 12
        labels = [(index / most, text_of(value)) for index, value in enumerate(parameter.choice)][::every]
        return Axis(name=name, share=lambda value: parameter.choice.index(value) / most, ticks=labels)
    return _scale(name, bounds.min, bounds.max, log=bounds.log)


def _value_axis(name: str, values: Sequence[float]) -> Axis:
    low, high = min(values), max(values)
    return _scale(name, low, high, log=low > 0 and high / low > WIDE_RANGE)


def _scale(name: str, low: float, high: float, *, log: bool) -> Axis:
    """Return an axis with its ends and what is between them as labels."""
    if not high > low:
        return Axis(name=name, share=lambda _value: 0.5, ticks=[(0.5, text_of(low))])

    def share(value: float) -> float:
        if log:
            return (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
        return (value / 2 - low / 2) / (high / 2 - low / 2)  # the difference of the largest numbers is infinite

    between = _decades(low, high) if log else _steps(low, high)
    every = 1 + len(between) // 8
    labels = [(share(each), each) for each in [low, *between[::every], high]]
    far = [(at, each) for at, each in labels if each in {low, high} or 0.07 < at < 0.93]
    return Axis(name=name, share=share, ticks=[(at, text_of(each)) for at, each in dict(far).items()])


def _decades(low: float, high: float) -> list[float]:
    """Return the powers of ten between two positive numbers."""
    return [10.0**power for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]


def _steps(low: float, high: float) -> list[float]:
    """Return about five round numbers between two."""
    distance = high / 5 - low / 5
    if distance < sys.float_info.min or not math.isfinite(distance):
        return []
    step = 10.0 ** math.floor(math.log10(distance))
    step *= next(factor for factor in (1, 2, 5, 10) if distance <= factor * step)
    return [index * step for index in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _down(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _line(x1: float, x2: float, y1: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "middle", limit: int = 40, bold: bool = False) -> str:
    """Return a label with a halo, so that lines behind it do not hide it; clipped, it has all of it as a tooltip."""
    title = f"<title>{escape(text)}</title>" if len(text) > limit else ""
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight}>{escape(clip(text, limit))}{title}</text>'


def _svg(width: float, content: str) -> str:
    size = f'width="{width:.0f}" height="{HEIGHT}"'
    return f'<div class="wide"><svg viewBox="0 0 {width:.0f} {HEIGHT}" {size} role="img">{content}</svg></div>'
