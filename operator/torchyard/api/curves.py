"""Curves in a status: a few buckets of the most important metrics, which outlive the pods of a job (pure).

A bucket is one step wide, or 2, 4, 8 ... where there would be too many. Its record has 22 bytes, little-endian: number
of the bucket (uint32: its first step divided by the width), mean, minimum and maximum of the finite values (float32),
how many values are finite, how many are not, and the round of the newest value (uint16 each).
"""

import base64
import binascii
import math
import struct
from bisect import bisect_left
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from torchyard.api.resource import RESULTS
from torchyard.api.status import MAX_CURVES, Curve

BUCKETS = 64
RECORD = struct.Struct("<IfffHHH")
MAX_FLOAT32 = 3.4028234e38
MAX_COUNT = 2**16 - 1
MAX_KEY = 2**32 - 1
IMPORTANT = (*RESULTS, "loss", "reward", "episodeReturn", "trainCost", "evalLoss")
DIAGNOSTICS = frozenset({"gradNorm", "learningRate", "advantage", "entropy", "dataWaitShare", "memoryPeakBytes"})
MAX_BYTES = BUCKETS * RECORD.size


class Bucket(NamedTuple):
    """One bucket; see the module for its fields."""

    key: int
    mean: float
    low: float
    high: float
    finite: int
    bad: int
    round: int


def with_points(curves: Mapping[str, Curve], step: int, values: Mapping[str, float], number: int) -> dict[str, Curve]:
    """Return curves with one more point each; at most `MAX_CURVES`, the most important ones.

    Args:
        curves: the curves by metric.
        step: of the points.
        values: new values by metric; they may be NaN or infinite.
        number: the round, whose points replace those that earlier rounds have at the same steps.
    """
    names = sorted(curves.keys() | values.keys(), key=_importance)[:MAX_CURVES]
    return {
        name: with_point(curves.get(name, Curve()), step, values[name], number) if name in values else curves[name]
        for name in sorted(names)
    }


def with_point(curve: Curve, step: int, value: float, number: int) -> Curve:
    """Return a curve with one more point."""
    width = curve.width
    key = step // width
    data = _bytes(curve)
    last = Bucket(*RECORD.unpack_from(data, len(data) - RECORD.size)) if data else None
    if last is not None and last.key >= key:
        buckets = _buckets(data)
        _put(buckets, _point(key, value, number), begins=step % width == 0)
    elif key <= MAX_KEY and len(data) < MAX_BYTES:  # nearly always: no need to read the other buckets
        return _curve(width, data + RECORD.pack(*_point(key, value, number)))
    else:
        buckets = [*_buckets(data), _point(key, value, number)]
    while len(buckets) > BUCKETS or buckets[-1].key > MAX_KEY:
        buckets, width = _coarser(buckets), 2 * width
    return _curve(width, b"".join(RECORD.pack(*each) for each in buckets))


def _put(buckets: list[Bucket], point: Bucket, *, begins: bool) -> None:
    """Add a point to its bucket or as one; `begins`: it is at the first step of its bucket."""
    place = bisect_left(buckets, point.key, key=lambda bucket: bucket.key)
    if place == len(buckets) or buckets[place].key != point.key:
        buckets.insert(place, point)
    elif begins and buckets[place].round != point.round:
        buckets[place] = point  # the round repeats all steps of the bucket; otherwise it has values of both rounds
    else:
        buckets[place] = merged(buckets[place], point)


def _curve(width: int, data: bytes) -> Curve:
    return Curve(width=width, data=base64.b64encode(data).decode())


def buckets_of(curve: Curve) -> list[Bucket]:
    """Return the buckets of a curve by step; data that cannot be read are none."""
    return _buckets(_bytes(curve))


def _bytes(curve: Curve) -> bytes:
    if curve.width < 1 or len(curve.data) > 2 * MAX_BYTES:
        return b""
    try:
        data = base64.b64decode(curve.data, validate=True)
    except (binascii.Error, ValueError):
        return b""
    return data if len(data) % RECORD.size == 0 else b""


def _buckets(data: bytes) -> list[Bucket]:
    buckets = [Bucket(*record) for record in RECORD.iter_unpack(data)]
    grows = all(left.key < right.key for left, right in pairwise(buckets))
    finite = all(map(math.isfinite, (value for each in buckets for value in each[1:4])))
    return buckets if grows and finite else []


def merged(left: Bucket, right: Bucket) -> Bucket:
    """Return one bucket for two, with the number of the first."""
    bad, newest = min(MAX_COUNT, left.bad + right.bad), max(left.round, right.round)
    if not (left.finite and right.finite):
        values = left if left.finite else right
        return Bucket(left.key, values.mean, values.low, values.high, values.finite, bad, newest)
    finite = left.finite + right.finite
    mean = left.mean * (left.finite / finite) + right.mean * (right.finite / finite)
    low, high = min(left.low, right.low), max(left.high, right.high)
    return Bucket(left.key, mean, low, high, min(MAX_COUNT, finite), bad, newest)


def _coarser(buckets: list[Bucket]) -> list[Bucket]:
    found: list[Bucket] = []
    for each in buckets:
        half = each._replace(key=each.key // 2)
        if found and found[-1].key == half.key:
            found[-1] = merged(found[-1], half)
        else:
            found.append(half)
    return found


def _point(key: int, value: float, number: int) -> Bucket:
    number = min(number, MAX_COUNT)
    if not math.isfinite(value):
        return Bucket(key, 0.0, 0.0, 0.0, 0, 1, number)
    value = max(-MAX_FLOAT32, min(MAX_FLOAT32, value))
    return Bucket(key, value, value, value, 1, 0, number)


def _importance(name: str) -> tuple[int, str]:
    if name in IMPORTANT:
        return 0, name
    lower = name.lower()
    if "loss" in lower or lower.startswith(("eval", "val")):
        return 1, name
    return (3 if name in DIAGNOSTICS else 2), name
