"""One metric of many jobs on one axis of steps: the means of buckets of the same width."""

import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from torchyard.client.errors import TorchYardError
from torchyard.client.followed import FOLLOWED
from torchyard.client.histories import SMALL_BYTES, Curve, Histories, curve, histories_of

MOST_RUNS = 2000
MOST_NAMES = 64
"""Metrics that a page offers."""
MOST_BYTES = 32 * 2**20
"""Of files without an index, that one request reads."""
MOST = 3e38
"""A float32; what is larger is drawn as a gap."""
CELLS = 512
"""Of an overlay: a curve has no more buckets at this scale."""


class Line(Struct, frozen=True, kw_only=True):
    """The curve of one job.

    Attributes:
        name: of the job.
        offset: cell of its first bucket.
        cells: means of its buckets as float32, cell by cell; NaN where it has no finite value.
        last: newest finite mean; None: no value is finite.
        low: lowest value.
        high: highest value.
        step: newest step.
        bad: number of values that are NaN or infinite.
    """

    name: str
    offset: int
    cells: "array[float]"
    last: float | None
    low: float
    high: float
    step: float
    bad: int


class Overlay(Struct, frozen=True, kw_only=True):
    """One metric of several jobs.

    Attributes:
        metric: that is shown; empty if no job has one.
        metrics: all that are known, those of most jobs first.
        first: first step of cell 0.
        width: steps of a cell.
        lines: of the jobs that have the metric.
        without: number of jobs that do not have it, or cannot be read.
        later: number of jobs without an index, which the next requests read.
    """

    metric: str
    metrics: Sequence[str]
    first: float
    width: float
    lines: Sequence[Line]
    without: int
    later: int = 0


def overlay_of(metric: str, metrics: Sequence[str], curves: Mapping[str, Curve], jobs: int, later: int = 0) -> Overlay:
    """Return the overlay of the curves of a metric by the name of their job, of so many jobs (pure)."""
    curves = {name: each for name, each in curves.items() if each.first}
    if not curves:
        return Overlay(metric=metric, metrics=metrics, first=0, width=1, lines=[], without=jobs - later, later=later)
    low = min(each.first[0] for each in curves.values())
    high = max(each.last[-1] for each in curves.values())
    width = 2.0 ** max(0, math.ceil(math.log2(max(1.0, (high - low + 1) / (CELLS - 1)))))
    begin = math.floor(low / width)
    lines = [_line(name, each, width, begin) for name, each in curves.items()]
    return Overlay(
        metric=metric, metrics=metrics, first=begin * width, width=width, lines=lines,
        without=jobs - later - len(lines), later=later,
    )  # fmt: skip


def _line(name: str, curve: Curve, width: float, begin: int) -> Line:
    keys = [math.floor(step / width) - begin for step in curve.last]
    offset, count = keys[0], keys[-1] - keys[0] + 1
    if len(set(keys)) == len(keys) == count and all(curve.finite) and -MOST < min(curve.mean) <= max(curve.mean) < MOST:
        cells = array("f", curve.mean)
    else:
        cells = _gathered(curve, keys, count)
    finite = next((place for place in reversed(range(len(keys))) if curve.finite[place]), None)
    return Line(
        name=name, offset=offset, cells=cells, last=None if finite is None else curve.mean[finite],
        low=_extreme(min, curve.low, curve.finite), high=_extreme(max, curve.high, curve.finite),
        step=curve.last[-1], bad=sum(curve.bad),
    )  # fmt: skip


def _extreme(which: Callable[[Iterable[float]], float], values: Sequence[float], finite: Sequence[int]) -> float:
    """Return the extreme of the values that are finite; 0 without any."""
    if all(finite):
        return which(values)
    there = [value for value, number in zip(values, finite, strict=True) if number]
    return which(there) if there else 0.0


def _gathered(curve: Curve, keys: Sequence[int], count: int) -> "array[float]":
    numbers, means = [0] * count, [0.0] * count
    for key, mean, finite in zip(keys, curve.mean, curve.finite, strict=True):
        if finite:
            at = key - keys[0]
            numbers[at] += finite
            means[at] += (mean - means[at]) * (finite / numbers[at])
    drawn = (number and -MOST < mean < MOST for mean, number in zip(means, numbers, strict=True))
    return array("f", (mean if each else math.nan for mean, each in zip(means, drawn, strict=True)))


def chosen(known: Counter[str]) -> str:
    """Return the metric that is shown first: what most jobs have, and of these what they are trained for (pure)."""
    trained = re.compile("loss|cost|reward|return|accuracy|success", re.IGNORECASE)
    return min(known, key=lambda name: (-known[name], trained.search(name) is None, name), default="")


def of_files(paths: Mapping[str, Path], metric: str) -> Overlay:
    """Return the overlay of a metric of files by the name of their job.

    Args:
        paths: of `metrics.jsonl`, which may be missing.
        metric: empty: the one that `chosen` returns.
    """
    known: Counter[str] = Counter()
    curves: dict[str, Curve] = {}
    wanted, later, left = metric, 0, MOST_BYTES
    for name, path in paths.items():
        try:
            names, found, read = _read(path, wanted, left)
            known.update(names or ())
            if not wanted and names:
                wanted = chosen(known)
                _, found, _ = _read(path, wanted, left)
        except TorchYardError:
            continue
        left -= read
        later += names is None
        if found is not None:
            curves[name] = found
    metrics = [name for name, _ in known.most_common(MOST_NAMES)]
    return overlay_of(wanted, metrics, curves, len(paths), later)


def _read(path: Path, metric: str, most: int) -> tuple[list[str] | None, Curve | None, int]:
    """Return the names of the metrics of a file, one curve, and the number of bytes read.

    No names: more than `most` bytes are not in its index.

    Raises:
        TorchYardError: it cannot be read.
    """
    try:
        size = path.stat().st_size
    except OSError:
        return [], None, 0
    if size <= SMALL_BYTES:
        with FOLLOWED.read(path) as small:
            return list(small.series), _curve(small, metric), 0
    read = Histories(path, [metric], "overview")
    read.follow(most=0)
    behind = size - read.offset
    if read.indexed and behind <= SMALL_BYTES:
        read.follow()
        return read.indexed, _curve(read, metric), 0
    if most <= 0:
        return None, None, 0
    whole = histories_of(path)  # which writes an index
    return list(whole.series), _curve(whole, metric), behind


def _curve(read: Histories, metric: str) -> Curve | None:
    return curve(read.series[metric].levels["overview"]) if metric in read.series else None
