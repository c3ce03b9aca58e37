"""A loss curve in a few lines of braille dots, two columns and four rows of dots a character.

Where values are not finite, the curve has a gap with marks at its bottom.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from torchyard.api.formatting import clean
from torchyard.api.values import figure
from torchyard.client.errors import TorchYardError
from torchyard.client.histories import Curve, Histories, curve

BLANK = 0x2800
MARK = "×"  # noqa: RUF001 - of values that are not finite
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # bits of the left and right column, top to bottom

MAX_BYTES = 4 << 20  # read between two pictures

ROUNDING = 1e-12  # relative: means of equal values differ by this little, and no curve shows it

Point = tuple[float, float]  # (step, value), which may be NaN or infinite


class History:
    """The points of a curve as they arrive, bounded: when it is full, every second one is dropped."""

    def __init__(self, limit: int = 2048) -> None:
        self.limit = limit
        self.points: list[Point] = []
        self.name = ""  # of the metric

    def add(self, step: float, value: float) -> None:
        """Append a point; at a step seen before (a round started from a checkpoint) it replaces what followed."""
        while self.points and self.points[-1][0] >= step:
            self.points.pop()
        self.points.append((step, value))
        if len(self.points) > self.limit:
            del self.points[1:-1:2]


class StoredCurve:
    """The curve of one metric in `metrics.jsonl`, read through the index beside it; a status has only a few points."""

    def __init__(self, path: Path, metric: str) -> None:
        self.metric = metric
        self._histories = Histories(path)

    def follow(self) -> bool:
        """Read what was appended since the last call, and save the index; return whether there is any point."""
        try:
            self._histories.follow(most=MAX_BYTES)
            self._histories.save()
        except TorchYardError:  # the volume is away, or it is no file: the view shows what the status has
            pass
        return self.metric in self._histories.series

    @property
    def points(self) -> list[Point]:
        """The points of the curve."""
        return points_of(self._curve)

    @property
    def missing(self) -> str:
        """How many values are not finite, and where the first one is; empty if all are finite."""
        return missing(self._curve)

    @property
    def _curve(self) -> Curve:
        return curve(self._histories.series[self.metric].levels["overview"])


def points_of(buckets: Curve) -> list[Point]:
    """Return the mean of each bucket at its last step, and NaN at the first step of one with values not finite."""
    found: list[Point] = []
    columns = zip(buckets.first, buckets.last, buckets.mean, buckets.finite, buckets.bad, strict=True)
    for first, last, mean, finite, bad in columns:
        found += [(first, math.nan)] if bad else []
        found += [(last, mean)] if finite and (first < last or not bad) else []
    return found


def missing(buckets: Curve) -> str:
    """Return how many values are not finite, and where the first one is; empty if all are finite."""
    return _gaps(sum(buckets.bad), sum(buckets.bad) + sum(buckets.finite), buckets.first, buckets.bad)


def gaps(points: Sequence[Point]) -> str:
    """Return how many of the points are not finite, and where the first one is; empty if all are finite."""
    bad = [not math.isfinite(value) for _, value in points]
    return _gaps(sum(bad), len(points), [step for step, _ in points], bad)


def _gaps(bad: int, all_points: int, steps: Sequence[float], is_bad: Sequence[int]) -> str:
    if not bad:
        return ""
    first = next(step for step, each in zip(steps, is_bad, strict=True) if each)
    return f"{MARK} {bad} of {all_points} points not finite, first at step {first:g}"


def heights(points: Sequence[Point], columns: int) -> tuple[list[float | None], set[int]]:
    """Return the curve sampled at `columns` evenly spaced steps, and the columns with values that are not finite.

    A sample is the mean of the finite points in its column, or lies on a line between those beside it; None in a gap.

    Args:
        points: at least two, steps growing.
        columns: at least two.
    """
    first, last = points[0][0], points[-1][0]
    bins: list[list[float]] = [[] for _ in range(columns)]
    marked: set[int] = set()
    for step, value in points:
        share = (step / 2 - first / 2) / (last / 2 - first / 2)  # the difference of the largest numbers is infinite
        column = min(columns - 1, int(share * columns))
        if math.isfinite(value):
            bins[column].append(value)
        else:
            marked.add(column)
    known = [(i, math.fsum(value / len(values) for value in values)) for i, values in enumerate(bins) if values]
    sampled: list[float | None] = [None] * columns
    for i, value in known:
        sampled[i] = value
    for (i, a), (j, b) in pairwise(known):
        if marked.isdisjoint(range(i + 1, j)):
            sampled[i:j] = [a * (1 - k / (j - i)) + b * (k / (j - i)) for k in range(j - i)]
    return sampled, marked


def chart(metric: str, curve: Curve, width: int, height: int) -> list[str]:
    """Return a chart: name and extremes, `height` lines of the curve, its steps and what is not finite."""
    finite = [place for place, count in enumerate(curve.finite) if count]
    low = min((curve.low[place] for place in finite), default=0.0)
    high = max((curve.high[place] for place in finite), default=0.0)
    extremes = f"lowest {figure(low)}, highest {figure(high)}, last {figure(curve.mean[finite[-1]])}" if finite else ""
    first, last = (f"step {step:.16g}" for step in (curve.first[0], curve.last[-1]))
    drawn = draw(points_of(curve), width, height)
    space = max(1, width - len(first) - len(last))
    steps = first if first == last else f"{first}{missing(curve).center(space)}{last}"
    return [f"{clean(metric)}  {extremes}".rstrip(), *drawn, steps]


def draw(points: Sequence[Point], width: int, height: int) -> list[str]:
    """Return `height` lines of `width` braille characters; empty if there are fewer than two points."""
    if len(points) < 2 or width < 1 or height < 1:
        return []
    values, marked = heights(points, 2 * width)
    finite = [value for value in values if value is not None]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    rows = 4 * height
    reach = high / 2 - low / 2  # the difference of the largest numbers is infinite
    level_line = math.isclose(low, high, rel_tol=ROUNDING)
    cells = [[BLANK] * width for _ in range(height)]
    previous: int | None = None
    for column, value in enumerate(values):
        if value is None:
            previous = None
            continue
        level = round((high / 2 - value / 2) / reach * (rows - 1)) if not level_line else rows // 2
        start = level if previous is None else previous
        for row in range(min(start, level), max(start, level) + 1):
            if row != start or level == start:
                cells[row // 4][column // 2] |= DOTS[column % 2][row % 4]
        previous = level
    lines = ["".join(map(chr, line)) for line in cells]
    places = {column // 2 for column in marked}
    lines[-1] = "".join(
        MARK if place in places and character == chr(BLANK) else character for place, character in enumerate(lines[-1])
    )
    return lines
