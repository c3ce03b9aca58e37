"""Curves in a status: bounded, and of what was reported no extreme is lost."""

import base64
import math
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard.api.curves import BUCKETS, MAX_FLOAT32, RECORD, buckets_of, with_point, with_points
from torchyard.api.status import MAX_CURVES, Curve


def curve_of(points):
    curve = Curve()
    for step, value, number in points:
        curve = with_point(curve, step, value, number)
    return curve


def as_float32(value):
    return struct.unpack("<f", struct.pack("<f", max(-MAX_FLOAT32, min(MAX_FLOAT32, value))))[0]


@given(st.lists(st.tuples(st.integers(0, 2**60), st.floats()), max_size=200, unique_by=lambda each: each[0]))
def test_every_extreme_and_every_value_not_finite_is_in_a_bucket(points):
    curve = curve_of((step, value, 1) for step, value in points)
    buckets = buckets_of(curve)
    assert len(buckets) <= BUCKETS
    for each in buckets:
        inside = [value for step, value in points if step // curve.width == each.key]
        finite = [as_float32(value) for value in inside if math.isfinite(value)]
        assert (each.finite, each.bad) == (len(finite), len(inside) - len(finite))
        assert (each.low, each.high) == (min(finite, default=0), max(finite, default=0))
    assert sum(each.finite + each.bad for each in buckets) == len(points)


def test_a_round_that_repeats_steps_replaces_them():
    first = [(step, 9.0, 1) for step in range(50)]
    curve = curve_of([*first, *((step, 1.0, 2) for step in range(20, 40))])
    assert [each.mean for each in buckets_of(curve)] == [9.0] * 20 + [1.0] * 20 + [9.0] * 10


def test_the_largest_curves_take_at_most_16_kib():
    curves = {}
    for step in range(1, 9000, 7):
        curves = with_points(curves, step, {f"{name:02}{'m' * 62}": step / 3 for name in range(20)}, 2**20)
    assert len(curves) == MAX_CURVES
    assert len(msgspec.json.encode(curves)) <= 16 * 1024


def test_what_a_job_is_trained_for_takes_the_place_of_diagnostics():
    curves = with_points({}, 1, {f"m{number}": 1.0 for number in range(12)} | {"gradNorm": 1.0, "loss": 2.0}, 1)
    assert "loss" in curves
    assert "gradNorm" not in curves
    later = with_points(curves, 2, {"successRate": 0.5, "evalLoss": 1.0}, 1)
    assert {"loss", "successRate", "evalLoss"} <= later.keys()
    assert len(later) == MAX_CURVES


@pytest.mark.parametrize(
    "data", ["%", "AAAA", base64.b64encode(b"\xff" * 2 * RECORD.size).decode(), "A" * 10_000, "\u00e9"]
)
def test_data_that_cannot_be_read_are_an_empty_curve(data):
    assert buckets_of(Curve(data=data)) == []
    assert len(buckets_of(with_point(Curve(data=data), 3, 1.0, 1))) <= 1
