"""Curves that the agent keeps for a program: every point, at the step the program says, in files that tools read."""

import json
import random

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from torchyard.client import histories
from torchyard.client.histories import Histories
from torchyard_agent.telemetry import curve_index
from torchyard_agent.telemetry.curves import Axis, Curves


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines() if line]


@pytest.mark.parametrize(
    ("matches", "counted", "steps"),
    [
        pytest.param([{"step": 10, "loss": 3}, {"step": 20, "loss": 2}], 25, [10, 20], id="beside the metric"),
        pytest.param(
            [{"step": 10}, {"loss": 3}, {"acc": 1}, {"step": 20}, {"loss": 2}], 0, [10, 10, 20], id="before it"
        ),
        pytest.param([{"loss": 3}, {"loss": 2}, {"loss": 1}], 0, [1, 2, 3], id="nowhere, nothing is counted"),
        pytest.param([{"loss": 3}, {"loss": 2}], 40, [40, 41], id="nowhere, steps are counted"),
        pytest.param([{"step": 10, "loss": 3}, {"step": 5, "loss": 2}], 0, [10, 5], id="it starts over"),
    ],
)
def test_a_line_stands_at_the_step_that_the_program_gives_or_else_one_after_the_line_before(matches, counted, steps):
    points = Axis().of_matches(matches, counted)
    assert [step for step, _ in points] == steps
    assert all(values and "step" not in values for _, values in points)


def test_a_report_counts_once():
    axis = Axis()
    nan = {"step": 3, "metrics": {}, "nonFiniteMetrics": {"loss": {"value": "NaN", "step": 3}}}
    told = [{"step": 1}, {"step": 2, "metrics": {"loss": 3.0}}, {"step": 2, "metrics": {"loss": 3.0}}, nan, dict(nan)]
    points = [point for report in told for point in axis.of_report(report)]
    assert repr(points) == repr([(2, {"loss": 3.0}), (3, {"loss": float("nan")})])


def test_points_are_lines_and_events_that_tensorboard_reads(tmp_path):
    curves = Curves(tmp_path / "new", tensorboard=True)
    points = [(step, {"loss": 1 / (step + 1), "grad_norm": 1e300}) for step in range(300)]
    curves.add(points)
    curves.close()
    assert lines(tmp_path / "new") == [{"step": step, **values} for step, values in points]
    (path,) = (tmp_path / "new" / "tensorboard").iterdir()
    version, *events = EventFileLoader(str(path)).Load()
    assert version.file_version == "brain.Event:2"
    assert [event.step for event in events] == list(range(300))
    assert [value.tag for value in events[7].summary.value] == ["loss", "grad_norm"]
    assert events[7].summary.value[0].tensor.float_val[0] == pytest.approx(1 / 8)


def test_a_line_cut_short_by_a_lost_node_stays_alone(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "lo')
    curves = Curves(tmp_path, tensorboard=False)
    curves.add([(2, {"loss": 0.5})])
    curves.close()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "lo\n{"step": 2, "loss": 0.5}\n'
    assert not (tmp_path / "tensorboard").exists()


def test_nothing_is_created_for_a_program_without_metrics(tmp_path):
    curves = Curves(tmp_path / "new", tensorboard=True)
    curves.add([])
    curves.close()
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_written_costs_the_curves_and_is_logged_once(tmp_path, caplog):
    (tmp_path / "file").touch()
    curves = Curves(tmp_path / "file", tensorboard=True)
    curves.add([(1, {"loss": 1.0})])
    curves.close()
    curves.add([(2, {"loss": 1.0})])
    assert [record.message for record in caplog.records] == [
        f"curves in {tmp_path / 'file'}: File exists; no more points of this round are stored"
    ]


def test_the_index_of_the_agent_is_the_one_that_a_reader_would_make(tmp_path, monkeypatch):
    monkeypatch.setattr(curve_index, "SMALL_BYTES", 0)
    monkeypatch.setattr(histories, "SMALL_BYTES", 0)
    noise = random.Random(4)
    for begin in (0, 4_000, 9_500):  # three rounds, of which two repeat steps of the one before
        curves = Curves(tmp_path, tensorboard=False)
        points = [(step, {"loss": noise.gauss(0, 1), **({"acc": float("nan")} if step % 500 == 0 else {})})
                  for step in range(begin, begin + 6_000)]  # fmt: skip
        for start in range(0, len(points), 700):
            curves.add(points[start : start + 700])
        curves.close()
    read = Histories(tmp_path / "metrics.jsonl")
    read.follow()
    assert read._saved == read._offset, "the index of the agent was read, and covers the file"
    (tmp_path / histories.INDEX).unlink()
    made = Histories(tmp_path / "metrics.jsonl")
    made.follow()
    assert (read.rows, read.generation) == (made.rows, made.generation) == (18_000, 2)
    for name, series in made.series.items():
        for key, level in series.levels.items():
            found = read.series[name].levels[key]
            assert found.exponent == level.exponent
            for column, numbers in level.columns.items():
                assert list(found.columns[column]) == pytest.approx(list(numbers), rel=1e-9, abs=1e-12), (
                    name,
                    key,
                    column,
                )


@pytest.mark.parametrize("damage", [b"", b"{", b'{"version": 1}\n', b"\xff" * 100])
def test_an_index_that_cannot_be_continued_costs_no_point(tmp_path, monkeypatch, damage):
    monkeypatch.setattr(curve_index, "SMALL_BYTES", 0)
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "loss": 1.0}\n' * 10)
    (tmp_path / histories.INDEX).write_bytes(damage)
    curves = Curves(tmp_path, tensorboard=False)
    curves.add([(step, {"loss": 0.5}) for step in range(1, 50)])
    curves.close()
    assert len(lines(tmp_path)) == 59
    assert (tmp_path / histories.INDEX).read_bytes() == damage
