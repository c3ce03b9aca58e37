"""Values of metrics: what is a number in a line of output, and what becomes of one that is not finite."""

import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard_agent.telemetry import progress
from torchyard_agent.telemetry.curves import Curves
from torchyard_agent.telemetry.metrics import render
from torchyard_agent.telemetry.milestones import Milestones
from torchyard_agent.telemetry.patterns import Patterns
from torchyard_agent.telemetry.readings import number, overlaid, values_of, with_values
from torchyard_agent.telemetry.reports import Reports, from_patterns, understood

VALUES = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf])
UPDATES = st.lists(st.tuples(st.integers(0, 9), st.dictionaries(st.sampled_from("abc"), VALUES)))


@given(UPDATES, UPDATES)
def test_a_metric_is_its_newest_value_finite_or_not_and_says_since_when(updates, later):
    report, newest, since = {}, {}, {}
    for step, values in updates:
        report = with_values(report, values, step)
        for name, value in values.items():
            newest[name] = value
            since[name] = None if math.isfinite(value) else since.get(name) if since.get(name) is not None else step
    others = report.get("nonFiniteMetrics", {})
    assert not report.get("metrics", {}).keys() & others.keys()
    assert repr(sorted(values_of(report).items())) == repr(sorted(newest.items()))
    assert {name: entry["step"] for name, entry in others.items()} == {
        name: step for name, step in since.items() if step is not None
    }
    file = {"round": 1, "rank": 0, "step": 9, **report}
    assert values_of(understood(json.loads(json.dumps(file, allow_nan=False)))).keys() == newest.keys()
    over = {}
    for step, values in later:
        over = with_values(over, values, step)
    assert repr(sorted(values_of(overlaid(report, over)).items())) == repr(sorted((newest | values_of(over)).items()))


@given(st.floats() | st.integers(-(10**400), 10**400))
def test_what_python_prints_of_a_number_is_read_back(value):
    assert repr(number(f" {value} ")) == repr(float(str(value)))


@pytest.mark.parametrize(
    "text",
    [
        "1,25",
        "1.234,5",
        "1,234",
        "1_000",
        "1e",
        "12%",
        "0x10",
        "3.5s",
        "\uff11\uff12",
        "\u0661\u0662",
        "",
        ".",
        "-",
        "e5",
        "nano",
    ],
)
def test_a_text_that_is_only_nearly_a_number_is_none(text):
    assert number(text) is None


LAX, WORD, FOUR = r"loss\D*(?P<loss>[0-9.]+)", r"loss=(?P<loss>[^ ]+)", r"loss (?P<loss>\d\.\d{4})"


@pytest.mark.parametrize(
    ("pattern", "line", "values"),
    [
        pytest.param(LAX, "loss=1,25", {}, id="decimal comma"),
        pytest.param(WORD, "loss=1,25", {}, id="decimal comma in the group"),
        pytest.param(WORD, "loss=1,234", {}, id="1234 or 1.234"),
        pytest.param(LAX, "loss=1.234,5", {}, id="point and comma"),
        pytest.param(LAX, "loss=1_000", {}, id="underscores"),
        pytest.param(LAX, "loss=1e-05", {}, id="an exponent that the pattern does not know"),
        pytest.param(LAX, "loss=0x10", {}, id="hexadecimal"),
        pytest.param(LAX, "loss=1.2k", {}, id="a unit that changes"),
        pytest.param(LAX + r"\s*(?:k|M)", "loss=1.2k", {"loss": 1.2}, id="a unit that the pattern names"),
        pytest.param(LAX, "loss=12%", {"loss": 12}, id="a sign behind it"),
        pytest.param(r"loss=(?P<loss>\d+)", "loss=\uff11\uff12", {}, id="digits of another script"),
        pytest.param(LAX, "loss: -1.5", {}, id="a sign that the pattern does not know"),
        pytest.param(r".*(?P<loss>[0-9.]+)", "loss 12.5", {}, id="a greedy start"),
        pytest.param(r"^(?P<step>\d+),(?P<loss>[\d.]+),", "12,0.5,9", {"step": 12, "loss": 0.5}, id="CSV"),
        pytest.param(WORD, "loss=0.5, acc=1", {"loss": 0.5}, id="punctuation"),
        pytest.param(r"ckpt-(?P<step>\d+)", "ckpt-12.pt", {"step": 12}, id="name of a file"),
        pytest.param(WORD, "loss=1e999", {"loss": math.inf}, id="too large for a float"),
        pytest.param(LAX, "loss=nan", {"loss": math.nan}, id="NaN where the pattern knows digits only"),
        pytest.param(FOUR + r" acc (?P<acc>\d)", "loss -nan acc 5", {"loss": math.nan, "acc": 5}, id="NaN of C"),
        pytest.param(r"loss.*?(?P<loss>[\d.]+)", "loss inf acc 0.5", {"loss": math.inf}, id="not the next number"),
        pytest.param(LAX, "INFO nano loss=3", {"loss": 3}, id="words that begin like it"),
    ],
)  # fmt: skip
def test_a_group_has_a_plain_number_or_no_value_and_one_warning(pattern, line, values):
    patterns = Patterns([re.compile(pattern)])
    for _ in range(2):
        assert repr(patterns.values(line)) == repr({name: float(value) for name, value in values.items()})
    assert len(patterns.warnings) == (not values)
    for warning in patterns.warnings:
        assert len(warning) <= 260
        assert f"`{line}`" in warning
        assert f"`{pattern}`" in warning


def test_a_value_at_a_milestone_that_is_not_finite_stays_so(tmp_path):
    reports = Reports(tmp_path, 1, 0, 1, milestones=Milestones("loss", (10, 50)), total_steps=10)
    for step, loss in ((1.0, 0.5), (5.0, math.nan), (9.0, 0.25)):
        reports.add(0, from_patterns({"step": step, "loss": loss}), lines=1)
    (report,) = reports.all()
    assert report["metrics"] == {"loss@10%": 0.5, "loss": 0.25}
    assert report["nonFiniteMetrics"] == {"loss@50%": {"value": "NaN", "step": 5}}


def test_curves_and_the_agents_own_metrics_name_values_that_are_not_finite(tmp_path):
    curves = Curves(tmp_path, tensorboard=True)
    curves.add([(1, {"loss": 0.5}), (2, {"loss": math.nan, "gain": -math.inf})])
    curves.close()
    assert (tmp_path / "metrics.jsonl").read_text().splitlines() == [
        '{"step": 1, "loss": 0.5}',
        '{"step": 2, "loss": "NaN", "gain": "-Infinity"}',
    ]
    report = with_values({"rank": 0}, {"loss": math.nan, "gain": -math.inf}, 2)
    text = render({"reports": [report]})
    assert 'torchyard_metric{name="loss",rank="0"} NaN\n' in text
    assert 'torchyard_metric{name="gain",rank="0"} -Inf\n' in text


class Broken:
    def __float__(self):
        raise LookupError(self)

    __str__ = __float__


@pytest.mark.parametrize("value", [None, {"loss": 1.0}, [1, 2], "x", 1j, Broken(), 10**400])
@pytest.mark.parametrize("name", ["loss", "step", "total_steps", "epoch", "checkpoint_step"])
def test_what_is_no_number_is_left_out_of_a_report_with_a_warning(monkeypatch, tmp_path, capsys, name, value):
    monkeypatch.setenv("TORCHYARD_ROUND", "1")
    monkeypatch.setenv("TORCHYARD_RUN_DIR", str(tmp_path))
    monkeypatch.setattr(progress, "_writer", None)
    monkeypatch.setattr(progress, "_warned", set())
    for step in (1, 2):
        progress.report(**{"step": step, "loss": 0.5, **({} if step == 1 else {name: value})})
    assert progress._writer is not None
    progress._writer.write()
    written = json.loads((tmp_path / "report.0.json").read_text())
    assert written["metrics"] == {"loss": 0.5}
    assert written["step"] == (1 if name == "step" else 2)
    optional = value is None and name not in {"loss", "step"}
    assert [f"report(): {name} is left out" in each for each in written.get("warnings", [])] == [True] * (not optional)
    assert capsys.readouterr().err.count("left out") == (not optional)
