"""The report: always whole, always strict JSON, alive by its time, moving by its counter."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.trainers.gangs import until

from torchyard_trainers.core.json_text import json_of, number_of
from torchyard_trainers.core.metrics.curves import Curves
from torchyard_trainers.core.metrics.plots import MARK, read_curve, write_curve
from torchyard_trainers.core.report import Reporter


def read(path):
    return json.loads(path.read_text())


def test_a_report_has_the_fields_of_the_protocol(tmp_path):
    reporter = Reporter(tmp_path, rank=5, local_rank=1, round_number=4).start()
    reporter.phase("step")
    reporter.progress(12, 50)
    reporter.metrics({"loss": 1.5})
    reporter.throughput({"stepsPerSecond": 2.0})
    reporter.checkpoint({"step": 10, "time": 1.0, "path": "/x", "bytes": 3, "saveSeconds": 0.1})
    reporter.warn("checkpoint passed over")
    reporter.stop()
    facts = read(tmp_path / "report.1.json")
    assert facts.keys() == {
        *("round", "rank", "localRank", "pid", "counter", "time", "step", "totalSteps", "roundSteps", "epoch"),
        *(
            "phase",
            "phaseSince",
            "metrics",
            "nonFiniteMetrics",
            "throughput",
            "checkpoint",
            "warnings",
            "artifacts",
            "saves",
        ),
    }
    assert (facts["round"], facts["rank"], facts["step"], facts["phase"]) == (4, 5, 12, "step")
    assert [path.name for path in tmp_path.iterdir()] == ["report.1.json"]


@pytest.mark.parametrize("saves", [True, False])
def test_a_report_says_whether_a_request_to_stop_is_answered_by_saving(saves):
    assert Reporter(None, rank=0, local_rank=0, round_number=1, saves=saves).facts["saves"] is saves


def test_reports_are_written_periodically_and_their_counter_rises_only_with_the_main_thread(tmp_path):
    reporter = Reporter(tmp_path, rank=0, local_rank=0, round_number=1, period=0.01).start()
    first = read(tmp_path / "report.0.json")
    later = until(lambda: (found := read(tmp_path / "report.0.json"))["time"] > first["time"] and found)
    assert later["counter"] == first["counter"]
    reporter.progress(1, 2)
    until(lambda: read(tmp_path / "report.0.json")["counter"] > first["counter"])
    reporter.stop()


HOURS = 7200.0


@pytest.mark.parametrize(
    ("news", "field", "told"),
    [
        (lambda reporter: reporter.made_step(41, 50, {}, {}), "roundSteps", 1),
        (lambda reporter: reporter.checkpoint({"step": 40}), "checkpoint", {"step": 40}),
    ],
    ids=["the first step of a round", "a checkpoint"],
)
def test_news_that_the_next_decision_depends_on_is_reported_at_once(tmp_path, news, field, told):
    reporter = Reporter(tmp_path, rank=0, local_rank=0, round_number=2, period=HOURS).start()
    news(reporter)
    until(lambda: read(tmp_path / "report.0.json").get(field) == told)
    reporter.stop()


def test_steps_after_the_first_one_are_reported_with_the_next_report(tmp_path):
    reporter = Reporter(tmp_path, rank=0, local_rank=0, round_number=2, period=HOURS).start()
    reporter.made_step(41, 50, {}, {})
    written = until(lambda: (found := read(tmp_path / "report.0.json"))["roundSteps"] and found)
    for step in range(42, 50):
        reporter.made_step(step, 50, {}, {})
    reporter.checkpoint({"step": 49})
    found = until(lambda: (found := read(tmp_path / "report.0.json")).get("checkpoint") and found)
    assert (written["step"], found["step"]) == (41, 49)
    reporter.stop()


def test_metrics_that_are_not_finite_are_reported_as_such_until_they_are_finite_again(tmp_path):
    reporter = Reporter(tmp_path, rank=0, local_rank=0, round_number=1).start()
    reporter.made_step(1, 9, {"loss": 0.5, "gain": 1.0}, {})
    reporter.made_step(2, 9, {"loss": math.nan, "gain": -math.inf}, {"stepsPerSecond": math.inf})
    reporter.made_step(3, 9, {"loss": math.inf, "gain": 2.0}, {})
    reporter.stop()
    facts = json.loads((tmp_path / "report.0.json").read_text(), parse_constant=pytest.fail)
    assert facts["metrics"] == {"gain": 2.0}
    assert facts["nonFiniteMetrics"] == {"loss": {"value": "Infinity", "step": 2}}
    assert facts["throughput"] == {}


def test_curves_are_strict_json_that_keeps_what_is_not_finite(tmp_path):
    with Curves(tmp_path, tensorboard=False) as curves:
        for step, loss in enumerate((1.0, math.nan, -math.inf, 0.5), 1):
            curves.add(step, 4, {"loss": loss})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert lines[1:3] == ['{"step": 2, "loss": "NaN"}', '{"step": 3, "loss": "-Infinity"}']
    points = read_curve(tmp_path / "metrics.jsonl", "loss")
    assert [step for step, value in points if not math.isfinite(value)] == [2, 3]
    write_curve(tmp_path, tmp_path / "metrics.jsonl", "loss", "loss over steps")
    picture = (tmp_path / "curve.svg").read_text()
    assert (picture.count("<polyline"), picture.count(f">{MARK}<")) == (2, 2)
    assert "loss over steps; 2 of 4 values not finite" in picture
    assert "nan" not in picture.lower()


@given(st.floats())
def test_a_number_survives_strict_json(value):
    (written,) = json.loads(json_of([value]), parse_constant=pytest.fail)
    assert repr(number_of(written)) == repr(value)


def test_metrics_and_warnings_stay_bounded():
    reporter = Reporter(None, rank=0, local_rank=0, round_number=1).start()
    for number in range(100):
        reporter.metrics({f"m{number}": 1.0})
        reporter.warn("x" * 1000)
    reporter.stop()
    assert len(reporter.facts["metrics"]) == 64
    assert len(reporter.facts["warnings"]) == 8
    assert max(len(text) for text in reporter.facts["warnings"]) == 300


def test_metrics_that_a_status_has_no_place_for_are_named_once(capsys):
    reporter = Reporter(None, rank=0, local_rank=0, round_number=1)
    for step in range(3):
        reporter.metrics({f"m{number}": float(step) for number in range(69)})
        reporter.metrics({"late": 1.0})
    first, second = reporter.facts["warnings"]
    assert first == (
        "the status has at most 64 metrics, and not m64, m65, m66 and 2 more, which only metrics.jsonl and trackers "
        "have; report fewer names"
    )
    assert "and not late, which" in second
    assert capsys.readouterr().err.splitlines() == [f"torchyard_trainers: {text}" for text in (first, second)]
    for step in range(100):
        reporter.metrics({f"step{step}": 1.0})
    assert len(reporter.facts["warnings"]) == 3, "other warnings keep their place"


def test_a_run_folder_that_vanishes_never_stops_training(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    reporter = Reporter(folder, rank=0, local_rank=0, round_number=1, period=0.01).start()
    (folder / "report.0.json").unlink()
    folder.rmdir()
    reporter.progress(1, 2)
    reporter.stop()
    assert reporter.facts["step"] == 1
