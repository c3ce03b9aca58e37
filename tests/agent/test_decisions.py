"""The pure parts of the agent: fencing, reports, metrics, what is news."""

import json

import pytest

from torchyard_agent.control import status_report
from torchyard_agent.control.rounds import Move, RoundState, next_move
from torchyard_agent.telemetry import gpus, reports
from torchyard_agent.telemetry.metrics import render
from torchyard_agent.telemetry.readings import values_of

RUN_4 = {"verb": "run", "round": 4}
NOTHING = Move("nothing")


@pytest.mark.parametrize(
    ("rounds", "wish", "move"),
    [
        (RoundState(), {"verb": "wait"}, NOTHING),
        (RoundState(), {"verb": "a verb of next year"}, NOTHING),
        (RoundState(accepted=3), RUN_4, Move("start", round=4)),
        (RoundState(accepted=4), RUN_4, NOTHING),
        (RoundState(accepted=5), RUN_4, NOTHING),
        (RoundState(fence=4), RUN_4, NOTHING),
        (RoundState(accepted=3, running=3), RUN_4, Move("stop")),
        (RoundState(accepted=3, running=3, ending=True), RUN_4, NOTHING),
        (RoundState(accepted=4, running=4), {"verb": "stop", "round": 4}, Move("stop")),
        (RoundState(accepted=4, running=4), {"verb": "stop", "round": 3}, NOTHING),
        (RoundState(accepted=4), {"verb": "stop", "round": 4}, NOTHING),
        (
            RoundState(accepted=4, running=4),
            {"verb": "save-and-stop", "round": 4, "graceSeconds": 9},
            Move("save", seconds=9),
        ),
        (RoundState(accepted=4, running=4, ending=True, saving=True), {"verb": "save-and-stop", "round": 4}, NOTHING),
        (RoundState(accepted=4, running=4, ending=True, saving=True), {"verb": "stop", "round": 4}, Move("stop")),
        (RoundState(accepted=4, running=4), {"verb": "a later verb", "round": 4}, NOTHING),
        (RoundState(accepted=4, running=4), {"verb": "exit", "code": 3}, Move("stop")),
        (RoundState(accepted=4), {"verb": "exit", "code": 3}, Move("exit", code=3)),
    ],
)
def test_each_command_has_one_next_move_and_rounds_are_accepted_once(rounds, wish, move):
    assert next_move(rounds, wish) == move


@pytest.mark.parametrize("wish", [{"verb": "run"}, {"verb": "stop", "round": "4"}, {"verb": "exit", "code": None}])
def test_a_command_with_a_missing_or_wrong_field_names_it(wish):
    with pytest.raises(ValueError, match="must be an integer"):
        next_move(RoundState(running=4), wish)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("checkpoint", "/ckpt/3"),
        ("checkpoint", {"step": [3]}),
        ("metrics", [0.5]),
        ("throughput", 3.0),
        ("warnings", "hot"),
        ("phase", ["step"]),
        ("phaseSince", "now"),
        ("counter", {}),
        ("totalSteps", "many"),
        ("epoch", 10**400),
        ("saves", "yes"),
    ],
)
def test_a_report_of_any_program_costs_only_the_fields_that_are_wrong(tmp_path, name, wrong):
    right = {"round": 4, "rank": 1, "step": 7, "phase": "eval", "checkpoint": {"step": 3}, "metrics": {"loss": 0.5}}
    (tmp_path / "report.0.json").write_text(json.dumps({**right, name: wrong, "of their own": {"x": 1}}))
    read = reports.Reports(tmp_path, 4, 1, 1)
    read.read()
    (report,) = read.all()
    assert {**report, name: right.get(name)} == {"phase": "step", "localRank": 0, **right, name: right.get(name)}
    assert report.get(name) != wrong
    assert status_report.news({"state": "running", "round": 4, "notices": [], "reports": [report]})
    assert "torchyard_step" in render({"reports": [report]})
    assert reports.trimmed([report])[0]["step"] == 7


def test_a_report_of_c_may_have_values_that_are_not_finite(tmp_path):
    text = '{"round": 4, "rank": 1, "step": 7, "metrics": {"loss": -nan, "gain": inf , "acc": 1.5}}'
    (tmp_path / "report.0.json").write_text(text)
    read = reports.Reports(tmp_path, 4, 1, 1)
    read.read()
    (report,) = read.all()
    assert repr(values_of(report)) == "{'acc': 1.5, 'loss': nan, 'gain': inf}"


def test_metrics_beyond_those_of_a_status_are_named_in_a_warning():
    report = {"round": 1, "rank": 0, "step": 1, "metrics": {f"m{number}": 1.0 for number in range(66)}}
    (sent,) = reports.trimmed([{**report, "warnings": ["first"]}])
    assert list(sent["metrics"]) == list(report["metrics"])[:64]
    assert sent["warnings"] == [
        "first",
        "the status has at most 64 metrics; m64 and later ones are left out. Report fewer metrics",
    ]
    (sent,) = reports.trimmed([{**report, "nonFiniteMetrics": {"x": {"value": "NaN", "step": 1}}}])
    assert (list(sent["nonFiniteMetrics"]), len(sent["metrics"])) == (["x"], 63)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"round": 4, "rank": 1}', '{"round": 4, "rank": 1, "step": true}', "[]"]
)
def test_a_report_that_cannot_be_read_is_as_if_it_were_not_there(tmp_path, text):
    (tmp_path / "report.0.json").write_text(text)
    read = reports.Reports(tmp_path, 4, 1, 1)
    read.read()
    assert read.all() == []


def test_metrics_of_a_report_are_its_finite_numbers_and_the_others_have_a_name_and_a_step():
    metrics = {"a": 1, "b": float("nan"), "c": "2", "d": None, "e": True, "f": "-inf", "g": 3.0}
    raw = {"round": 1, "rank": 0, "step": 7, "metrics": metrics, "nonFiniteMetrics": {"g": {"value": "NaN", "step": 4}}}
    raw["nonFiniteMetrics"] |= {"h": 3, "i": {"value": "huge", "step": 1}, "j": {"value": "NaN"}}
    read = reports.understood(raw, {"nonFiniteMetrics": {"b": {"value": "NaN", "step": 5}}})
    assert read["metrics"] == {"a": 1}
    assert read["nonFiniteMetrics"] == {
        "b": {"value": "NaN", "step": 5},
        "f": {"value": "-Infinity", "step": 7},
        "g": {"value": "NaN", "step": 4},
    }


def test_a_joined_report_keeps_the_larger_step_and_both_sets_of_metrics():
    counted = {"step": 7, "metrics": {"a": 1.0}, "throughput": {"stepsPerSecond": 2.0}}
    told = reports.from_kubeflow(
        {
            "trainerStatus": {
                "metrics": [
                    {"name": "current_step", "value": "107"},
                    {"name": "loss", "value": "0.5"},
                    {"name": "bad", "value": "nan"},
                    {},
                ]
            }
        }
    )
    joined = reports.join(counted, told)
    assert (joined["step"], joined["throughput"]) == (107, {"stepsPerSecond": 2.0})
    assert {name: str(value) for name, value in joined["metrics"].items()} == {"a": "1.0", "loss": "0.5", "bad": "nan"}
    assert reports.join(None, {"metrics": {"loss": 1.0}}) is None
    with pytest.raises(ValueError, match="trainerStatus"):
        reports.from_kubeflow({"trainerStatus": 3})


def test_metrics_are_prometheus_text_with_escaped_labels():
    text = render(
        {
            "state": "ready",
            "round": 2,
            "reports": [{"rank": 0, "step": 3, "metrics": {'a"b\n': 1.5}, "throughput": {"stepsPerSecond": 2}}],
        }
    )
    assert 'torchyard_metric{name="a\\"b\\n",rank="0"} 1.5' in text
    assert 'torchyard_throughput_steps_per_second{rank="0"} 2' in text
    assert text.count("# TYPE torchyard_agent_state gauge") == 1


@pytest.mark.parametrize(
    ("names", "indices"),
    [(None, [0, 1]), ("", []), ("-1", []), ("1", [1]), ("GPU-bbbb", [1]), ("GPU-aaaa,GPU-bbbb", [0, 1]), ("GPU-", [])],
)
def test_only_the_gpus_that_workers_may_use_are_reported(names, indices):
    both = [{"index": 0, "uuid": "GPU-aaaa-1"}, {"index": 1, "uuid": "GPU-bbbb-2"}]
    assert [gpu["index"] for gpu in gpus.visible(both, names)] == indices
