"""A loss curve in a few lines of braille dots, two columns and four rows of dots a character."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

BLANK = 0x2800
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # bits of the left and right column, top to bottom

MAX_BYTES = 1 << 20  # read at a time

Point = tuple[float, float]  # (step, value)


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
    """The points of one metric in `metrics.jsonl`: all that were logged; a status has only a few of them."""

    def __init__(self, path: Path, metric: str) -> None:
        self.history = History()
        self.metric = metric
        self._path = path
        self._offset = 0

    def follow(self) -> bool:
        """Read what was appended since the last call; return whether there is any point."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(MAX_BYTES)
        except OSError:
            return bool(self.history.points)
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole) or (len(data) if len(data) == MAX_BYTES else 0)
        for line in whole.splitlines():
            self._add(line)
        return bool(self.history.points)

    def _add(self, line: bytes) -> None:
        try:
            point = json.loads(line)
            self.history.add(float(point["step"]), float(point[self.metric]))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return  # another metric's, or cut short by a full disk


def heights(points: Sequence[Point], columns: int) -> list[float]:
    """Return the curve sampled at `columns` evenly spaced steps: the mean of the points in each, lines in between.

    Args:
        points: at least two, steps growing.
        columns: at least two.
    """
    first, last = points[0][0], points[-1][0]
    bins: list[list[float]] = [[] for _ in range(columns)]
    for step, value in points:
        bins[min(columns - 1, int((step - first) / (last - first) * columns))].append(value)
    known = [(i, sum(values) / len(values)) for i, values in enumerate(bins) if values]
    sampled: list[float] = []
    for (i, a), (j, b) in pairwise(known):
        sampled += [a + (b - a) * k / (j - i) for k in range(j - i)]
    return [*sampled, known[-1][1]]


def draw(points: Sequence[Point], width: int, height: int) -> list[str]:
    """Return `height` lines of `width` braille characters; empty if there are fewer than two points."""
    if len(points) < 2 or width < 1 or height < 1:
        return []
    values = heights(points, 2 * width)
    low, high = min(values), max(values)
    rows = 4 * height
    scale = (rows - 1) / (high - low) if high > low else 0.0
    levels = [round((high - value) * scale) if scale else rows // 2 for value in values]
    cells = [[BLANK] * width for _ in range(height)]
    previous = levels[0]
    for column, level in enumerate(levels):
        for row in range(min(previous, level), max(previous, level) + 1):
            if row != previous or level == previous:
                cells[row // 4][column // 2] |= DOTS[column % 2][row % 4]
        previous = level
    return ["".join(map(chr, line)) for line in cells]
