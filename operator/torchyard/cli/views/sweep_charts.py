"""Charts of a sweep as SVG: its history and parallel coordinates (pure)."""

from collections.abc import Callable, Sequence
from html import escape

from torchyard.api.formatting import clip
from torchyard.api.values import plural
from torchyard.client.sweep_charts import History, Point, coordinates_of, history_of, round_numbers
from torchyard.sweeps.resource import TrainingSweep
from torchyard.sweeps.results import Result

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


def history(sweep: TrainingSweep, results: Sequence[Result]) -> str:
    """Return the values of the trials by number, and the best one so far of those that trained to their end."""
    shown = history_of(sweep, results)
    if shown is None:
        return "<p>No trial has reported a value.</p>"
    last = max(1, shown.last)

    def across(number: int) -> float:
        return LEFT + number / last * (WIDTH - LEFT - RIGHT)

    parts = [_line(LEFT, WIDTH - RIGHT, _down(share), _down(share), "#eee") for share, _ in shown.axis.ticks]
    parts += [_text(LEFT - 8, _down(share) + 4, label, anchor="end") for share, label in shown.axis.ticks]
    numbers = {int(at) for at in round_numbers(0, last) if at == int(at) and at < 0.95 * last} | {shown.last}
    parts += [_text(across(number), HEIGHT - BOTTOM + 18, str(number)) for number in sorted(numbers)]
    parts += [_text(WIDTH - RIGHT, HEIGHT - 4, "trial", anchor="end"), _text(LEFT, 12, shown.axis.name, anchor="start")]
    parts += [_best_line(shown, across)]
    for each in shown.points:
        if each.share is None:
            continue
        title = f"<title>{escape(each.name)}: {each.value} ({escape(each.outcome)} at {each.percent} %)</title>"
        at = f'cx="{across(each.number):.1f}" cy="{_down(each.share):.1f}"'
        colour = BEST if each.best else COLOURS[each.outcome]
        parts.append(f'<circle {at} r="{5 if each.best else 3.5}" fill="{colour}">{title}</circle>')
    marks = [each for each in shown.points if each.share is None]
    parts += [_mark(each, across(each.number)) for each in marks]
    outcomes = {each.outcome for each in shown.points if each.share is not None}
    said = f"<p>{MARK} {plural(len(marks), 'trial')} whose value is not finite.</p>" if marks else ""
    return _svg(WIDTH, "".join(parts)) + said + _legend([each for each in COLOURS if each in outcomes], sweep)


def coordinates(sweep: TrainingSweep, results: Sequence[Result]) -> str:
    """Return a line for each trial that trained to its end, across an axis for each parameter and the objective."""
    shown = coordinates_of(sweep, results)
    if shown is None:
        return "<p>No trial has trained to its end.</p>"
    gaps = len(shown.axes) - 1
    width = max(WIDTH, LEFT + RIGHT + AXIS_WIDTH * gaps + 40)
    inside = width - LEFT - RIGHT - 40

    def across(index: int) -> float:
        return LEFT + index / gaps * inside

    parts = []
    for each in shown.lines:
        shares = [ABSENT if share is None else share for share in each.shares]
        line = " ".join(f"{across(index):.1f},{_down(share):.1f}" for index, share in enumerate(shares))
        title = f"<title>{escape(each.name)}: {each.value}</title>"
        colour, thickness, opacity = (BEST, 3, 1) if each.best else (COLOURS["complete"], 1, 0.45)
        parts.append(
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="{thickness}" '
            f'stroke-opacity="{opacity}">{title}</polyline>'
        )
    for index, axis in enumerate(shown.axes):
        x = across(index)
        parts.append(_line(x, x, _down(0), _down(1), "#888"))
        parts.append(_text(x, 12, axis.name, limit=NAME, bold=True))
        ticks = [*axis.ticks, *([(ABSENT, "none")] if axis.optional else [])]
        parts += [_text(x + 4, _down(share) + 4, label, anchor="start", limit=LABEL) for share, label in ticks]
    return _svg(width, "".join(parts))


def _best_line(shown: History, across: Callable[[int], float]) -> str:
    corners: list[tuple[float, float]] = []
    for number, share in shown.best:
        if corners:
            corners.append((across(number), corners[-1][1]))
        corners.append((across(number), _down(share)))
    if corners:
        corners.append((across(shown.last), corners[-1][1]))
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    return f'<polyline points="{line}" fill="none" stroke="{BEST}" stroke-width="2"/>'


def _mark(point: Point, x: float) -> str:
    """Return the mark of a trial whose value is not finite, at the bottom of the chart."""
    title = f"<title>{escape(point.name)}: {point.value} ({escape(point.outcome)})</title>"
    colour = COLOURS[point.outcome]
    return f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM:.0f}" text-anchor="middle" fill="{colour}">{MARK}{title}</text>'


def _legend(outcomes: Sequence[str], sweep: TrainingSweep) -> str:
    means = {"stopped": "stopped early, with the value at its rung", "complete": "trained to its end"}
    items = [(COLOURS[each], means.get(each, each)) for each in outcomes]
    items.append((BEST, f"best so far ({sweep.spec.objective.goal})"))
    return "<p class=legend>" + "".join(
        f'<span><svg width="10" height="10"><rect width="10" height="10" fill="{colour}"/></svg> {escape(text)}</span>'
        for colour, text in items
    ) + "</p>"  # fmt: skip


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
