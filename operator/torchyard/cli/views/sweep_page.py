"""The results of a sweep as one HTML page, without scripts: history, parallel coordinates, importances."""

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from torchyard.api.formatting import figure
from torchyard.sweeps.resource import TrainingSweep
from torchyard.sweeps.results import Result, best_so_far
from torchyard.sweeps.spec import Parameter

WIDTH, HEIGHT, MARGIN = 860, 260, 44
_STYLE = """
body{font:14px/1.5 system-ui,sans-serif;max-width:900px;margin:2em auto;padding:0 1em;color:#222}
svg{width:100%;height:auto}text{font-size:11px;fill:#555}table{border-collapse:collapse}
td,th{padding:.2em .8em .2em 0;text-align:left;border-bottom:1px solid #ddd}tr.best{font-weight:bold}
"""
_COLOURS = {"complete": "#2563a8", "stopped": "#c9a227", "failed": "#c0392b", "running": "#888", "suspended": "#888"}


def page_of(sweep: TrainingSweep, results: Sequence[Result], shares: Mapping[str, float]) -> str:
    """Return the page.

    Args:
        sweep: the sweep.
        results: of its trials.
        shares: importance of each parameter, 0 to 1; empty: not known.
    """
    title = f"Sweep {sweep.metadata.name}"
    objective = f"{sweep.spec.objective.goal} {sweep.spec.objective.metric}"
    parts = [
        f"<h1>{escape(title)}</h1><p>{escape(objective)}; {len(results)} trials by {sweep.spec.algorithm.name}.</p>",
        "<h2>History</h2>",
        _history(sweep, results),
        "<h2>Parallel coordinates</h2>",
        _coordinates(sweep, results),
        "<h2>Importances</h2>",
        _importances(shares),
        "<h2>Trials</h2>",
        _table(sweep, results),
    ]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style>{''.join(parts)}</html>\n"
    )


def _history(sweep: TrainingSweep, results: Sequence[Result]) -> str:
    points = [(each.number, each.value, each.outcome) for each in results if each.value is not None]
    if not points:
        return "<p>No trial has reported a value yet.</p>"
    low, high = min(value for _, value, _ in points), max(value for _, value, _ in points)
    last = max(1, *(number for number, _, _ in points))

    def point(number: float, value: float) -> str:
        return f"{_across(number / last):.1f},{_down(_share(value, low, high)):.1f}"

    dots = "".join(
        f'<circle cx="{at[0]}" cy="{at[1]}" r="4" fill="{_COLOURS[outcome]}"><title>trial {number}: {value:.6g} '
        f"({outcome})</title></circle>"
        for number, value, outcome in points
        for at in [point(number, value).split(",")]
    )
    complete = [each.number for each in results if each.outcome == "complete" and each.value is not None]
    best = " ".join(point(number, value) for number, value in zip(complete, best_so_far(sweep, results), strict=True))
    line = f'<polyline points="{best}" fill="none" stroke="#2a7" stroke-width="2"/>'
    return _svg(line + dots + _text(4, MARGIN, figure(high)) + _text(4, HEIGHT - MARGIN, figure(low)))


def _coordinates(sweep: TrainingSweep, results: Sequence[Result]) -> str:
    shown = [each for each in results if each.outcome == "complete" and each.value is not None]
    if not shown:
        return "<p>No trial has trained to its end yet.</p>"
    values = [each.value for each in shown if each.value is not None]
    low, high = min(values), max(values)
    axes = [*sweep.spec.parameters, None]
    steps = max(1, len(axes) - 1)
    lines = []
    for each in sorted(shown, key=lambda result: result.best):
        points = []
        for position, parameter in enumerate(axes):
            share = _share(each.value or 0.0, low, high)
            if parameter is not None:
                if parameter.path not in each.parameters:
                    continue
                share = _position(parameter, each.parameters[parameter.path])
            points.append(f"{_across(position / steps):.1f},{_down(share):.1f}")
        colour, width = ("#2a7", 3) if each.best else ("#2563a8", 1)
        lines.append(
            f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="{width}" '
            f'stroke-opacity="0.7"><title>trial {each.number}: {each.value:.6g}</title></polyline>'
        )
    marks = [
        f'<line x1="{_across(position / steps):.1f}" x2="{_across(position / steps):.1f}" y1="{MARGIN}" '
        f'y2="{HEIGHT - MARGIN}" stroke="#bbb"/>'
        + _text(
            _across(position / steps) - 30,
            HEIGHT - 16,
            parameter.path.rpartition(".")[2] if parameter is not None else sweep.spec.objective.metric,
        )
        for position, parameter in enumerate(axes)
    ]
    return _svg("".join(marks + lines))


def _importances(shares: Mapping[str, float]) -> str:
    if not shares:
        return "<p>Too few trials trained to their end to tell.</p>"
    rows = "".join(
        f"<tr><td>{escape(path)}</td><td>{100 * share:.0f} %</td>"
        f'<td><svg viewBox="0 0 300 12" style="width:300px"><rect width="{300 * share:.0f}" height="12" '
        f'fill="#2563a8"/></svg></td></tr>'
        for path, share in sorted(shares.items(), key=lambda item: -item[1])
    )
    return f"<table>{rows}</table>"


def _table(sweep: TrainingSweep, results: Sequence[Result]) -> str:
    paths = [parameter.path for parameter in sweep.spec.parameters]
    failures = ["why"] if any(each.why for each in results) else []
    names = ("trial", "outcome", sweep.spec.objective.metric, *paths, *failures)
    head = "".join(f"<th>{escape(each)}</th>" for each in names)
    rows = []
    for each in results:
        cells = [each.name, each.outcome, "" if each.value is None else f"{each.value:.6g}"]
        cells += [json.dumps(each.parameters[path]) if path in each.parameters else "" for path in paths]
        cells += [each.why] if failures else []
        kind = ' class="best"' if each.best else ""
        rows.append(f"<tr{kind}>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>")
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _position(parameter: Parameter, value: Any) -> float:
    """Return where a value is on the axis of its parameter, 0 to 1."""
    bounds = parameter.float_ or parameter.int_
    if bounds is None:
        return parameter.choice.index(value) / max(1, len(parameter.choice) - 1)
    if bounds.log:
        return _share(math.log(value), math.log(bounds.min), math.log(bounds.max))
    return _share(value, bounds.min, bounds.max)


def _share(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if high > low else 0.5


def _across(share: float) -> float:
    return MARGIN + share * (WIDTH - 2 * MARGIN)


def _down(share: float) -> float:
    return HEIGHT - MARGIN - share * (HEIGHT - 2 * MARGIN)


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}">{escape(text)}</text>'


def _svg(content: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{content}</svg>'
