"""The loss curve shows what happened, in the space it is given, whatever arrives."""

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from torchyard.cli.views.curve import BLANK, History, StoredCurve, draw, gaps
from torchyard.client.metrics import table_of


def rows_of(lines: list[str]) -> list[set[int]]:
    """For each column of dots, the rows (0: top) that are set."""
    columns: list[set[int]] = [set() for _ in range(2 * len(lines[0]))]
    bits = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
    for number, line in enumerate(lines):
        for index, character in enumerate(line):
            for side in (0, 1):
                for row in range(4):
                    if (ord(character) - BLANK) & bits[side][row]:
                        columns[2 * index + side].add(4 * number + row)
    return columns


def test_a_falling_loss_falls_from_the_top_left_to_the_bottom_right() -> None:
    columns = rows_of(draw([(step, 100 - step) for step in range(100)], 20, 5))
    assert 0 in columns[0]
    assert 19 in columns[-1]
    assert all(max(left) <= max(right) for left, right in pairwise(columns))


def test_a_constant_is_a_level_line() -> None:
    assert len({frozenset(rows) for rows in rows_of(draw([(0, 2.0), (5, 2.0), (9, 2.0)], 10, 4))}) == 1


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(2, 50), st.integers(1, 80))
def test_equal_values_are_a_level_line_wherever_they_are(value: float, count: int, width: int) -> None:
    lines = draw([(step, value) for step in range(count)], width, 4)
    assert len({frozenset(rows) for rows in rows_of(lines)}) == 1


def test_steps_as_far_apart_as_numbers_can_be_are_drawn() -> None:
    lines = draw([(-1.7e308, 0.0), (0.0, 1.0), (1.7e308, 2.0)], 10, 2)
    assert all(rows_of(lines))


def test_too_little_to_draw_is_nothing() -> None:
    assert draw([], 10, 3) == draw([(1, 1.0)], 10, 3) == []


@given(
    st.lists(
        st.tuples(st.integers(0, 10**9), st.floats(allow_nan=False, allow_infinity=False)),
        max_size=300,
        unique_by=lambda point: point[0],
    ),
    st.integers(1, 60),
    st.integers(1, 8),
)
def test_any_points_fill_exactly_the_space_and_leave_no_gap(
    points: list[tuple[int, float]], width: int, height: int
) -> None:
    points.sort()
    lines = draw(points, width, height)
    if len(points) < 2:
        assert lines == []
        return
    assert [len(line) for line in lines] == [width] * height
    assert all(rows_of(lines))


def test_a_round_that_starts_again_replaces_what_it_repeats() -> None:
    history = History()
    for step in (10, 20, 30, 40):
        history.add(step, 1.0)
    history.add(25, 2.0)
    assert history.points == [(10, 1.0), (20, 1.0), (25, 2.0)]


def test_a_long_history_stays_bounded_and_keeps_both_ends() -> None:
    history = History(limit=100)
    for step in range(10_000):
        history.add(step, float(step))
    assert len(history.points) <= 101
    assert history.points[0] == (0, 0.0)
    assert history.points[-1] == (9_999, 9_999.0)


def test_a_stored_curve_has_every_point_as_it_is_appended_and_passes_over_other_lines(tmp_path) -> None:
    path = tmp_path / "metrics.jsonl"
    curve = StoredCurve(path, "loss")
    assert not curve.follow()
    torn = '{"step": 2, "lo'
    path.write_text(
        '{"step": 1, "loss": 3}\n{"step": 1, "cost": 9}\n'
        + torn
        + '\n[]\n{"step": 2, "loss": 2}\n{"step": 3, "loss": 1'
        + "0" * 400
        + "}\n"
    )
    assert curve.follow()
    assert curve.points == [(1, 3), (2, 2)]
    with path.open("a") as file:
        file.write('{"step": 3, "loss": 1}\n{"step"')
    assert curve.follow()
    assert curve.points == [(1, 3), (2, 2), (3, 1)]


def test_values_that_are_not_finite_are_a_gap_with_marks_and_a_count(tmp_path) -> None:
    path = tmp_path / "metrics.jsonl"
    values = ["3", "2", *['"NaN"'] * 6, "NaN", '"-Infinity"', "2", "1"]
    path.write_text("".join(f'{{"step": {step}, "loss": {value}}}\n' for step, value in enumerate(values)))
    curve = StoredCurve(path, "loss")
    assert curve.follow()
    lines = draw(curve.points, 12, 3)
    assert [len(line) for line in lines] == [12] * 3
    assert "×××××" in lines[-1]  # noqa: RUF001
    assert all(not rows for rows in rows_of([line[4:7].replace("×", chr(BLANK)) for line in lines]))  # noqa: RUF001
    assert curve.missing == gaps(curve.points) == "× 8 of 12 points not finite, first at step 2"  # noqa: RUF001
    assert gaps([(0, 1.0)]) == ""
    assert table_of(path).column("loss")[-3:] == [(9, -math.inf), (10, 2), (11, 1)]


def test_a_curve_without_a_finite_value_is_marks_alone() -> None:
    assert draw([(0, math.nan), (9, math.inf)], 4, 2) == [chr(BLANK) * 4, f"×{chr(BLANK) * 2}×"]  # noqa: RUF001


def test_a_line_without_an_end_is_left_behind(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("torchyard.client.histories.PART_BYTES", 64)
    path = tmp_path / "metrics.jsonl"
    path.write_text("x" * 200 + '\n{"step": 1, "loss": 3}\n')
    curve = StoredCurve(path, "loss")
    assert [curve.follow() for _ in range(5)][-1]
