"""Buckets of a curve: what a chart shows of a million points without losing one spike (pure).

The bounds of a bucket depend on its steps alone, never on the time of a request: a chart that is drawn again shows the
same buckets.
"""

import math
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

FINE, OVERVIEW = 2048, 512
PER_OCTAVE = 16
"""Buckets of a logarithmic level from one step to its double."""

REALS = ("first", "last", "mean", "low", "high")
COUNTS = ("finite", "bad", "generation")


class Summary(NamedTuple):
    """The points of one bucket; `mean`, `low` and `high` are those of its `finite` finite values, 0 without any.

    Attributes:
        first: smallest step.
        last: largest step.
        mean: of the finite values.
        low: their minimum.
        high: their maximum.
        finite: number of finite values.
        bad: number of values that are NaN or infinite.
        generation: number of times that training had gone back to an earlier step before the newest of its values.
    """

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
    else:  # a value that is not finite, or a sum that is too large
        values = [value for value in values if math.isfinite(value)]
        bad, count = count - len(values), len(values)
        mean = math.fsum(value / count for value in values)
    return Summary(
        steps[0], steps[-1], mean, min(values, default=0.0), max(values, default=0.0), count, bad, generation
    )


def merged(left: Summary, right: Summary) -> Summary:
    """Return one bucket for two."""
    ends = min(left.first, right.first), max(left.last, right.last)
    newest = max(left.generation, right.generation)
    if not (left.finite and right.finite):
        values = left if left.finite else right
        low, high = values.low, values.high
        return Summary(*ends, values.mean, low, high, values.finite, left.bad + right.bad, newest)
    count = left.finite + right.finite
    mean = left.mean * (left.finite / count) + right.mean * (right.finite / count)
    low, high = min(left.low, right.low), max(left.high, right.high)
    return Summary(*ends, mean, low, high, count, left.bad + right.bad, newest)


class Level:
    """Buckets of 2**exponent steps each, at most `most`: one more doubles their width."""

    def __init__(self, most: int, exponent: int = 0) -> None:
        self.most, self.exponent = most, exponent
        self.columns: dict[str, array[Any]] = {name: array("d") for name in REALS}
        self.columns |= {name: array("I") for name in COUNTS}

    def __len__(self) -> int:
        return len(self.columns["first"])

    def at(self, place: int) -> Summary:
        """Return a bucket by its place."""
        return Summary._make(column[place] for column in self.columns.values())

    def bounds(self, step: float) -> tuple[float, float]:
        """Return the first step of the bucket of a step, and the first one behind it."""
        width = 2.0**self.exponent
        low = math.floor(step / width) * width
        return low, low + width

    def add(self, steps: Sequence[float], values: Sequence[float], generation: int) -> None:
        """Add points whose steps grow. They replace those of earlier generations at the same steps.

        A bucket in which a generation begins holds the points of both: the earlier ones of it are still valid.
        """
        start = self._add_single(steps, values, generation)
        while start < len(steps):
            low, high = self.bounds(steps[start])
            end = max(start + 1, bisect_left(steps, high, start))
            self._put(low, high, summary(steps[start:end], values[start:end], generation))
            start = end
            while len(self) > self.most:
                self._coarsen()

    def _add_single(self, steps: Sequence[float], values: Sequence[float], generation: int) -> int:
        """Add the first points, if each has a new bucket to itself; return how many. That is all of a short history."""
        count = min(len(steps), self.most - len(self))
        if self.exponent or count <= 0 or (len(self) and steps[0] < self.bounds(self.columns["last"][-1])[1]):
            return 0
        if not all(map(float.is_integer, steps[:count])) or not all(map(math.isfinite, values[:count])):
            return 0
        for name, column in self.columns.items():
            column.extend(
                steps[:count] if name in {"first", "last"}
                else values[:count] if name in REALS
                else ({"finite": 1, "bad": 0, "generation": generation}[name],) * count
            )  # fmt: skip
        return count

    def _put(self, low: float, high: float, points: Summary) -> None:
        first = self.columns["first"]
        place = len(self) if not len(self) or first[-1] < low else bisect_left(first, low)
        if place == len(self) or first[place] >= high:
            for column, value in zip(self.columns.values(), points, strict=True):
                column.insert(place, value)
            return
        before = self.at(place)
        replaced = before.generation < points.generation and before.first >= points.first
        same_point = before.first == before.last == points.first
        self._set(place, points if replaced or same_point else merged(before, points))

    def _set(self, place: int, points: Summary) -> None:
        for column, value in zip(self.columns.values(), points, strict=True):
            column[place] = value

    def _coarsen(self) -> None:
        self.exponent += 1
        width = 2.0**self.exponent
        keys = [math.floor(step / width) for step in self.columns["first"]]
        if all(left != right for left, right in pairwise(keys)):
            return
        buckets: list[Summary] = []
        for place, key in enumerate(keys):
            if place and key == keys[place - 1]:
                buckets[-1] = merged(buckets[-1], self.at(place))
            else:
                buckets.append(self.at(place))
        for name, values in zip(self.columns, zip(*buckets, strict=True), strict=True):
            self.columns[name] = array("d" if name in REALS else "I", values)


class LogLevel(Level):
    """Buckets whose width grows with the step, for an axis that is logarithmic; all steps below 1 are in one."""

    def __init__(self) -> None:
        super().__init__(most=2**16)

    def _add_single(self, steps: Sequence[float], values: Sequence[float], generation: int) -> int:  # noqa: ARG002
        return 0

    def bounds(self, step: float) -> tuple[float, float]:
        """Return the first step of the bucket of a step, and the first one behind it."""
        if step < 1:
            return -math.inf, 1.0
        key = math.floor(math.log2(step) * PER_OCTAVE)
        low, high = 2.0 ** (key / PER_OCTAVE), 2.0 ** min((key + 1) / PER_OCTAVE, 1023.9)
        return (high, 2.0 ** min((key + 2) / PER_OCTAVE, 1023.95)) if step >= high else (min(low, step), high)


class Series:
    """One metric at all levels."""

    def __init__(self) -> None:
        self.levels: dict[str, Level] = {"fine": Level(FINE), "overview": Level(OVERVIEW), "log": LogLevel()}

    def add(self, steps: Sequence[float], values: Sequence[float], generation: int) -> None:
        """Add points whose steps grow."""
        for level in self.levels.values():
            level.add(steps, values, generation)
