"""Buckets of a curve, as `client/levels.py` of the operator has them; a test compares the two (pure).

The agent runs on Python 3.9 and imports nothing of the operator.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

FINE, OVERVIEW, MOST = 2048, 512, 2**16
PER_OCTAVE = 16
REALS = ("first", "last", "mean", "low", "high")
COUNTS = ("finite", "bad", "generation")


class Summary(NamedTuple):
    """The points of one bucket; `mean`, `low` and `high` are those of its finite values."""

    first: float
    last: float
    mean: float
    low: float
    high: float
    finite: int
    bad: int
    generation: int


def summary(steps: Sequence[float], values: Sequence[float], generation: int) -> Summary:
    """Return the summary of points whose steps grow."""
    count, bad = len(values), 0
    total = sum(values)
    if math.isfinite(total):
        mean = total / count
    else:
        values = [value for value in values if math.isfinite(value)]
        bad, count = count - len(values), len(values)
        mean = math.fsum(value / count for value in values)
    low, high = min(values, default=0.0), max(values, default=0.0)
    return Summary(steps[0], steps[-1], mean, low, high, count, bad, generation)


def merged(left: Summary, right: Summary) -> Summary:
    """Return one bucket for two."""
    first, last = min(left.first, right.first), max(left.last, right.last)
    newest, bad = max(left.generation, right.generation), left.bad + right.bad
    if not (left.finite and right.finite):
        only = left if left.finite else right
        return Summary(first, last, only.mean, only.low, only.high, only.finite, bad, newest)
    count = left.finite + right.finite
    mean = left.mean * (left.finite / count) + right.mean * (right.finite / count)
    return Summary(first, last, mean, min(left.low, right.low), max(left.high, right.high), count, bad, newest)


class Level:
    """Buckets of 2**exponent steps each, at most `most`: one more doubles their width."""

    def __init__(self, most: int) -> None:
        self.most, self.exponent = most, 0
        self.columns: Dict[str, Any] = {name: array("d") for name in REALS}
        self.columns.update({name: array("I") for name in COUNTS})

    def __len__(self) -> int:
        return len(self.columns["first"])

    def bounds(self, step: float) -> Tuple[float, float]:
        """Return the first step of the bucket of a step, and the first one behind it."""
        width = 2.0**self.exponent
        low = math.floor(step / width) * width
        return low, low + width

    def add(self, steps: Sequence[float], values: Sequence[float], generation: int) -> None:
        """Add points whose steps grow. They replace those of earlier generations at the same steps."""
        start = 0
        while start < len(steps):
            low, high = self.bounds(steps[start])
            end = max(start + 1, bisect_left(steps, high, start))
            self._put(low, high, summary(steps[start:end], values[start:end], generation))
            start = end
            while len(self) > self.most:
                self._coarsen()

    def _at(self, place: int) -> Summary:
        return Summary._make(column[place] for column in self.columns.values())

    def _put(self, low: float, high: float, points: Summary) -> None:
        first = self.columns["first"]
        place = len(self) if not len(self) or first[-1] < low else bisect_left(first, low)
        if place == len(self) or first[place] >= high:
            for column, value in zip(self.columns.values(), points):
                column.insert(place, value)
            return
        before = self._at(place)
        replaced = before.generation < points.generation and before.first >= points.first
        same_point = before.first == before.last == points.first
        for column, value in zip(self.columns.values(), points if replaced or same_point else merged(before, points)):
            column[place] = value

    def _coarsen(self) -> None:
        self.exponent += 1
        width = 2.0**self.exponent
        keys = [math.floor(step / width) for step in self.columns["first"]]
        buckets: List[Summary] = []
        for place, key in enumerate(keys):
            if place and key == keys[place - 1]:
                buckets[-1] = merged(buckets[-1], self._at(place))
            else:
                buckets.append(self._at(place))
        if len(buckets) < len(self):
            for name, values in zip(self.columns, zip(*buckets)):
                self.columns[name] = array("d" if name in REALS else "I", values)


class LogLevel(Level):
    """Buckets whose width grows with the step; all steps below 1 are in one."""

    def __init__(self) -> None:
        super().__init__(MOST)

    def bounds(self, step: float) -> Tuple[float, float]:
        """Return the first step of the bucket of a step, and the first one behind it."""
        if step < 1:
            return -math.inf, 1.0
        key = math.floor(math.log2(step) * PER_OCTAVE)
        low, high = 2.0 ** (key / PER_OCTAVE), 2.0 ** min((key + 1) / PER_OCTAVE, 1023.9)
        return (high, 2.0 ** min((key + 2) / PER_OCTAVE, 1023.95)) if step >= high else (min(low, step), high)


def new_series() -> Dict[str, Level]:
    """Return one metric at all levels."""
    return {"fine": Level(FINE), "overview": Level(OVERVIEW), "log": LogLevel()}
