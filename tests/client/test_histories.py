"""Curves of long runs: as fast as an index allows, and never another curve than the one that was logged."""

import json
import math
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchyard.client import histories
from torchyard.client.errors import TorchYardError
from torchyard.client.histories import INDEX, Histories, curve, histories_of
from torchyard.client.levels import FINE, OVERVIEW
from torchyard.client.metrics import FILE, MAX_METRICS, rows_of, table_of

SPIKE = 11_234


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(histories, "SMALL_BYTES", 0)


def write(path, rows, mode="w"):
    with path.open(mode) as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def columns(read):
    return {
        (name, key): [list(column) for column in level.columns.values()]
        for name, series in read.series.items()
        for key, level in series.levels.items()
    }


def close(found):
    """The same columns, with means that were added in another order."""
    return {key: [*columns[:2], pytest.approx(columns[2], rel=1e-12), *columns[3:]] for key, columns in found.items()}


@pytest.fixture
def long_run(tmp_path):
    rows = [{"step": step, "loss": 3 + math.sin(step / 500)} for step in range(20_000)]
    rows[SPIKE]["loss"] = 1e308
    for step in (100, 101, 9_000):
        rows[step]["loss"] = ("NaN", "Infinity", "-Infinity")[step % 3]
    for step in range(0, 20_000, 1000):
        rows[step]["evalLoss"] = step / 7
    write(tmp_path / FILE, rows)
    return tmp_path / FILE


def test_a_spike_of_one_point_is_seen_at_every_zoom(long_run):
    read = histories_of(long_run)
    for level in read.series["loss"].levels.values():
        for width in (20_000, 10_000, 3_000, 500, 10):
            shown = curve(level, SPIKE - width // 3, SPIKE + width // 3)
            assert max(shown.high) == 1e308
    assert [len(read.series["loss"].levels[key]) <= most for key, most in (("fine", FINE), ("overview", OVERVIEW))]


def test_buckets_hold_each_value_once_and_values_not_finite_are_counted(long_run):
    table = table_of(long_run)
    for name, level in (
        (name, level) for name, each in histories_of(long_run).series.items() for level in each.levels.values()
    ):
        points = table.column(name)
        shown = curve(level)
        assert sum(shown.finite) + sum(shown.bad) == len(points)
        assert sum(shown.bad) == (3 if name == "loss" else 0)
        for place in range(0, len(shown.first), 97):
            inside = [
                value for step, value in points if shown.first[place] <= step <= shown.last[place] and value < math.inf
            ]
            inside = [value for value in inside if math.isfinite(value)]
            assert (shown.low[place], shown.high[place]) == (min(inside, default=0.0), max(inside, default=0.0))
            mean = math.fsum(value / len(inside) for value in inside)
            assert shown.mean[place] == pytest.approx(mean, rel=1e-9)


def test_an_index_and_what_was_appended_are_the_same_curve_as_the_whole_file(long_run):
    assert histories_of(long_run).rows == 20_000
    more = [{"step": step, "loss": float(step), "new": 1} for step in range(15_000, 21_000)]
    write(long_run, more, "a")
    with long_run.open("a") as file:
        file.write('{"step": 21000, "lo')
    behind = Histories(long_run)
    behind.follow()
    one = Histories(long_run, ["loss"])
    one.follow()
    long_run.with_name(INDEX).unlink()
    whole = histories_of(long_run)
    assert close(columns(whole)) == columns(behind)
    assert columns(one) == {key: value for key, value in columns(behind).items() if key[0] == "loss"}
    assert whole.generation == behind.generation == 1
    assert whole.rows == behind.rows == 26_000


def test_a_round_that_repeats_steps_replaces_them(tmp_path):
    path = tmp_path / FILE
    write(path, [{"step": step, "loss": 1e9} for step in range(1000)])
    write(path, [{"step": step, "loss": float(step)} for step in range(400, 1500)], "a")
    level = histories_of(path).series["loss"].levels["fine"]
    assert [level.at(place).mean for place in range(1500)] == [1e9] * 400 + [float(step) for step in range(400, 1500)]
    assert table_of(path).column("loss")[399:401] == [(399, 1e9), (400, 400.0)]


def test_points_of_a_short_range_are_those_that_were_logged(long_run):
    read = histories_of(long_run)
    shown = read.points("loss", 11_000, 11_500)
    assert shown is not None
    assert list(zip(shown.steps, shown.values, strict=True)) == table_of(long_run).column("loss")[11_000:11_501]
    reread = Histories(long_run)
    reread.follow()
    assert list(reread.points("loss", 11_000, 11_500).steps) == list(shown.steps)


def damage_nothing(index):
    pass


def cut(index):
    index.write_bytes(index.read_bytes()[:-9])


def swap(index):
    head, _, _ = index.read_bytes().partition(b"\n")
    index.write_bytes(head + b"\n" + b"\xff" * (len(index.read_bytes()) - len(head) - 1))


def fifo(index):
    index.unlink()
    os.mkfifo(index)


def garbage(index):
    index.write_bytes(b'{"version": 1, "offset": -1' + b"[" * 5000)


@pytest.mark.parametrize("damage", [damage_nothing, cut, swap, fifo, garbage])
def test_a_damaged_index_is_ignored(long_run, damage):
    expected = columns(histories_of(long_run))
    damage(long_run.with_name(INDEX))
    assert columns(histories_of(long_run)) == expected


def test_a_file_that_was_replaced_is_read_again(long_run):
    read = histories_of(long_run)
    write(long_run, [{"step": 1, "cost": 2}])
    assert read.follow()
    assert list(read.series) == list(histories_of(long_run).series) == ["cost"]
    long_run.unlink()
    assert not read.follow()
    os.mkfifo(long_run)
    with pytest.raises(TorchYardError, match="not a regular file"):
        read.follow()


def test_more_metrics_than_the_limit_are_counted_or_an_error(tmp_path):
    path = tmp_path / FILE
    write(path, [{"step": 1, **{f"m{number}": 1 for number in range(MAX_METRICS + 1)}}])
    assert (len(histories_of(path).series), histories_of(path).left_out) == (512, 512)
    with pytest.raises(TorchYardError, match="more than 4096 metrics"):
        table_of(path)


NUMBERS = st.one_of(st.floats(), st.integers(-5, 5), st.just("NaN"), st.just("text"), st.booleans(), st.none())


@settings(max_examples=100)
@given(st.lists(st.dictionaries(st.sampled_from(["step", "a", "b", "c"]), NUMBERS), max_size=30))
def test_a_table_is_what_a_dictionary_of_its_rows_is(rows):
    expected: dict[float, dict[str, float]] = {}
    for row in rows:
        numbers = {name: float(value) for name, value in row.items()
                   if value == "NaN" or (isinstance(value, int | float) and not isinstance(value, bool))}  # fmt: skip
        if math.isfinite(numbers.get("step", math.nan)):
            expected.setdefault(numbers["step"], {}).update(numbers)
    table = rows_of(json.dumps(row).encode() for row in rows)
    found = [dict(sorted((name, float(value)) for name, value in row.items())) for row in table]
    assert repr(found) == repr(
        [dict(sorted(expected[step].items())) for step in sorted(expected)]
    )  # NaN differs from NaN
