"""Values of a metric at percents of a program's steps: from what it prints, from its report file, from `report`."""

import json

import pytest

from torchyard_agent.telemetry.milestones import Milestones, read_milestones
from torchyard_agent.telemetry.progress import report
from torchyard_agent.telemetry.reports import Reports, from_patterns

LOSS = Milestones("loss", (10, 30, 90))
STEPS = [{"step": float(step), "loss": 1 / step} for step in range(1, 11)]
WHOLE = {"loss@10%": 1.0, "loss@30%": 1 / 3, "loss@90%": 1 / 9}


@pytest.mark.parametrize(
    ("matches", "total", "kept"),
    [
        pytest.param(STEPS, 10, WHOLE, id="lines of one look count one by one"),
        pytest.param([each | {"total_steps": 10.0} for each in STEPS], 99, WHOLE, id="the program's own total wins"),
        pytest.param([{"loss": each["loss"]} for each in STEPS], 10, WHOLE, id="lines are steps where none is printed"),
        pytest.param(STEPS[3:], 10, WHOLE | {"loss@10%": 0.25, "loss@30%": 0.25}, id="resumed behind two of them"),
        pytest.param(
            [{"step": 2.0}, {"loss": 0.5}, {"step": 3.0}, {"loss": 0.4}],
            10,
            {"loss@10%": 0.5, "loss@30%": 0.5},
            id="step and value on lines of their own",
        ),
        pytest.param(STEPS, None, {}, id="no total"),
    ],
)
def test_printed_metrics_are_kept_at_each_milestone(tmp_path, matches, total, kept):
    reports = Reports(tmp_path, 1, 0, 1, milestones=LOSS, total_steps=total)
    for match in matches:
        reports.add(0, from_patterns(match), lines=1)
    (found,) = reports.all()
    assert {name: value for name, value in found["metrics"].items() if "@" in name} == pytest.approx(kept)
    assert found["metrics"]["loss"] == matches[-1]["loss"]
    assert ["the total number of steps is unknown" in each for each in found.get("warnings", [])] == [True] * (not kept)


def test_a_report_file_is_kept_at_each_percent_and_its_own_values_win(tmp_path):
    reports = Reports(tmp_path, 1, 0, 1, milestones=LOSS)
    for step, metrics in ((1, {"loss": 5.0}), (4, {"loss": 4.0, "loss@30%": 4.5}), (9, {"loss": 2.0, "loss@30%": 4.5})):
        text = json.dumps({"round": 1, "rank": 0, "step": step, "totalSteps": 10, "metrics": metrics})
        (tmp_path / "new").write_text(text)
        (tmp_path / "new").replace(tmp_path / "report.0.json")
        reports.read()
    kept = {"loss@10%": 5.0, "loss@30%": 4.5, "loss@90%": 2.0}
    assert reports.all()[0]["metrics"] == kept | {"loss": 2.0}


@pytest.mark.parametrize(("total", "given"), [(10, {}), (None, {"TORCHYARD_TOTAL_STEPS": "10"})])
def test_report_itself_keeps_values_however_rarely_its_file_is_written(tmp_path, monkeypatch, total, given):
    milestones = json.dumps({"metric": "loss", "percents": [10, 30, 90]})
    env = {"TORCHYARD_ROUND": "1", "TORCHYARD_RUN_DIR": str(tmp_path), "TORCHYARD_MILESTONES": milestones, **given}
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("torchyard_agent.telemetry.progress._writer", None)
    for each in STEPS:
        report(int(each["step"]), total_steps=total, loss=each["loss"])
    written = json.loads((tmp_path / "report.0.json").read_text())
    assert written["step"] >= 9, "a value at a percent is written at once"
    assert {name: value for name, value in written["metrics"].items() if "@" in name} == pytest.approx(WHOLE)


@pytest.mark.parametrize("text", ["[", "[]", '{"metric": "loss"}', '{"metric": "loss", "percents": ["x"]}'])
def test_an_unreadable_variable_is_named_with_its_form(text):
    with pytest.raises(ValueError, match=r"TORCHYARD_MILESTONES must be JSON such as .*percents"):
        read_milestones({"TORCHYARD_MILESTONES": text})
