"""The pure parts of the agent: fencing, first cause, what fits into a request, settings, commands."""

import json
import sys

import pytest

from torchyard_agent import command, dump, failure, gpus, reports, settings, termination, told
from torchyard_agent.body import BODY_BYTES, fit
from torchyard_agent.launcher import exec_arguments
from torchyard_agent.logs import RankLog
from torchyard_agent.metrics import render
from torchyard_agent.rounds import Move, Standing, next_move

RUN_4 = {"verb": "run", "round": 4}
NOTHING = Move("nothing")


@pytest.mark.parametrize(
    ("standing", "wish", "move"),
    [
        (Standing(), {"verb": "wait"}, NOTHING),
        (Standing(), {"verb": "a verb of next year"}, NOTHING),
        (Standing(accepted=3), RUN_4, Move("start", round=4)),
        (Standing(accepted=4), RUN_4, NOTHING),
        (Standing(accepted=5), RUN_4, NOTHING),
        (Standing(fence=4), RUN_4, NOTHING),
        (Standing(accepted=3, running=3), RUN_4, Move("stop")),
        (Standing(accepted=3, running=3, ending=True), RUN_4, NOTHING),
        (Standing(accepted=4, running=4), {"verb": "stop", "round": 4}, Move("stop")),
        (Standing(accepted=4, running=4), {"verb": "stop", "round": 3}, NOTHING),
        (Standing(accepted=4), {"verb": "stop", "round": 4}, NOTHING),
        (
            Standing(accepted=4, running=4),
            {"verb": "save-and-stop", "round": 4, "graceSeconds": 9},
            Move("save", seconds=9),
        ),
        (Standing(accepted=4, running=4, ending=True, saving=True), {"verb": "save-and-stop", "round": 4}, NOTHING),
        (Standing(accepted=4, running=4, ending=True, saving=True), {"verb": "stop", "round": 4}, Move("stop")),
        (Standing(accepted=4, running=4), {"verb": "dump", "id": 2, "round": 4}, Move("dump", dump=2)),
        (Standing(accepted=4, running=4, dumped=2), {"verb": "dump", "id": 2, "round": 4}, NOTHING),
        (Standing(accepted=3, dumped=2), {"verb": "dump", "id": 2, "round": 4}, Move("start", round=4)),
        (Standing(accepted=4, running=4), {"verb": "exit", "code": 3}, Move("stop")),
        (Standing(accepted=4), {"verb": "exit", "code": 3}, Move("exit", code=3)),
    ],
)
def test_each_command_has_one_next_move_and_rounds_are_accepted_once(standing, wish, move):
    assert next_move(standing, wish) == move


@pytest.mark.parametrize("wish", [{"verb": "run"}, {"verb": "stop", "round": "4"}, {"verb": "exit", "code": None}])
def test_a_command_with_a_missing_or_wrong_field_names_it(wish):
    with pytest.raises(ValueError, match="must be an integer"):
        next_move(Standing(running=4), wish)


def cause(**facts):
    return failure.record(**{"rank": 0, "local_rank": 0, "pid": 1, "code": 1, "time": 10.0, **facts})


@pytest.mark.parametrize(
    ("exception", "message", "code", "secondary"),
    [
        ("ValueError", "connection closed by peer", 1, False),
        ("RuntimeError", "[gloo/transport/tcp/pair.cc:545] Connection closed by peer [127.0.0.1]:26011", 1, True),
        (
            "torch.distributed.DistBackendError",
            "NCCL error: remote process exited or there was a network error",
            1,
            True,
        ),
        (
            "torch.distributed.DistBackendError",
            "NCCL error: unhandled cuda error, CUDA error: an illegal memory access",
            1,
            False,
        ),
        ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB", 1, False),
        ("ConnectionResetError", "[Errno 104] Connection reset by peer", 1, True),
        ("RuntimeError", "mat1 and mat2 shapes cannot be multiplied", 1, False),
        (None, "", 76, True),
        (None, "", 137, False),
    ],
)
def test_failures_that_only_say_a_peer_went_away_are_secondary(exception, message, code, secondary):
    found = {"exception": exception, "message": message}
    assert cause(code=code, found=found)["secondary"] is secondary


def test_the_first_cause_is_the_earliest_failure_that_is_no_consequence():
    lost = cause(rank=0, time=1.0, found={"exception": "ConnectionError", "message": "x"})
    late, early = cause(rank=1, time=3.0), cause(rank=2, time=2.0)
    assert failure.first_cause([lost, late, early])["rank"] == 2
    assert failure.first_cause([lost])["rank"] == 0
    assert failure.first_cause([]) is None


def test_exception_and_message_are_read_from_output_when_the_program_left_no_file():
    lines = ["step 1", "Traceback (most recent call last):", '  File "a.py", line 1', "my.Error: no: way", "bye"]
    assert failure.from_lines(lines) == {
        "exception": "my.Error",
        "message": "no: way",
        "traceback": "\n".join(lines[1:4]),
    }
    assert failure.from_lines(["all is well"]) == {}


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("time", "2025-11-21T08:00:00Z"),
        ("exception", {"type": "E"}),
        ("phase", 3),
        ("step", "7"),
        ("time", float("nan")),
        ("time", 10**400),
        ("nextMicroBatch", "16"),
        ("nextMicroBatch", True),
    ],
)
def test_a_failure_file_of_any_program_costs_only_the_fields_that_are_wrong(name, wrong):
    right = {"exception": "Odd", "message": "said", "time": 3.0, "phase": "eval", "step": 7, "nextMicroBatch": 16}
    expected = {**right, "exception": None, "time": 10.0, "phase": None, "step": None, "nextMicroBatch": None}
    read = cause(found={**right, name: wrong})
    assert read[name] == expected[name]
    assert {key: read[key] for key in right if key != name} == {key: right[key] for key in right if key != name}


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
    assert told.news({"state": "running", "round": 4, "notices": [], "reports": [report]})
    assert "torchyard_step" in render({"reports": [report]})
    assert reports.trimmed([report])[0]["step"] == 7


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"round": 4, "rank": 1}', '{"round": 4, "rank": 1, "step": true}', "[]"]
)
def test_a_report_that_cannot_be_read_is_as_if_it_were_not_there(tmp_path, text):
    (tmp_path / "report.0.json").write_text(text)
    read = reports.Reports(tmp_path, 4, 1, 1)
    read.read()
    assert read.all() == []


def test_metrics_of_a_report_are_its_finite_numbers():
    raw = {"round": 1, "rank": 0, "step": 1, "metrics": {"a": 1, "b": float("nan"), "c": "2", "d": None, "e": True}}
    assert reports.understood(raw)["metrics"] == {"a": 1}


def test_a_request_always_fits_and_loses_the_least_needed_first():
    body = {
        "state": "running",
        "exit": {"code": 1, "failure": {"rank": 3, "traceback": "t" * 4000}, "lines": ["l" * 200] * 20},
        "reports": [{"rank": rank, "step": 1, "metrics": {f"m{i}": 1.0 for i in range(32)}} for rank in range(16)],
        "dump": {"id": 1, "text": "x" * 6144},
        "gpus": [{"uuid": "GPU-" + "0" * 36}] * 8,
        "notices": ["n" * 200] * 8,
    }
    data = fit(body)
    assert len(data) <= BODY_BYTES
    kept = json.loads(data)
    assert kept["exit"]["failure"]["rank"] == 3
    assert kept["reports"][0]["step"] == 1


@pytest.mark.parametrize("character", ["t", "字", "\x1b", "\ud800", "😀"])
def test_why_a_round_ended_is_told_in_any_language_together_with_reports_and_gpus(character):
    found = {"exception": "Odd", "message": character * 9000, "traceback": character * 9000}
    known = {"rank": 3, "code": 7, "exception": "Odd"}
    body = {
        "exit": {"code": 7, "failure": cause(rank=3, code=7, found=found), "lines": [character * 200] * 20},
        "reports": [{"rank": 0, "step": 1}],
        "gpus": [{"uuid": "GPU-" + "0" * 36}] * 8,
        "notices": ["one"],
    }
    data = fit(body)
    assert len(data) <= BODY_BYTES
    kept = json.loads(data)
    assert {name: kept["exit"]["failure"][name] for name in known} == known
    assert len(kept["exit"]["failure"]["message"]) >= 75
    assert kept["exit"]["failure"]["traceback"]
    assert kept["exit"]["lines"]
    assert (kept["reports"], kept["gpus"], kept["notices"]) == (body["reports"], body["gpus"], body["notices"])


def test_what_a_program_printed_is_cut_like_what_it_wrote():
    bounded = failure.bounded({**cause(), "traceback": "字" * 9000 + "the end", "exception": "E" * 9000})
    assert len(bounded["traceback"].encode()) <= 4000
    assert bounded["traceback"].endswith("the end")
    assert len(bounded["exception"]) == 200


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
    assert (joined["step"], joined["metrics"], joined["throughput"]) == (
        107,
        {"a": 1.0, "loss": 0.5},
        {"stepsPerSecond": 2.0},
    )
    assert reports.join(None, {"metrics": {"loss": 1.0}}) is None
    with pytest.raises(ValueError, match="trainerStatus"):
        reports.from_kubeflow({"trainerStatus": 3})


def test_a_rank_log_keeps_last_lines_bounded_survives_rotation_and_starts_where_the_round_starts(tmp_path, monkeypatch):
    path = tmp_path / "rank-0.log"
    path.write_bytes("of the round before 🏖️\n".encode())
    log = RankLog(tmp_path, 0)
    with path.open("ab") as file:
        for number in range(500):
            file.write(b"progress\r" * 5 + b"line %d " % number + b"x" * 3000 + b"\n")
    log.finish()
    assert len(log.lines) == 200
    assert log.lines[-1].startswith("line 499 ")
    assert max(map(len, log.lines)) <= 1000
    assert sum(len(line) + 1 for line in log.last(20, 4096)) <= 4096
    monkeypatch.setattr("torchyard_agent.logs.ROTATE_BYTES", 10)
    with path.open("ab") as file:
        file.write(b"last words\n")
        file.flush()
        assert log.follow() == ["last words"]
        monkeypatch.undo()
        file.write(b"after the cut")
        file.flush()
        log.finish()
    assert log.lines[-1] == "after the cut"
    assert path.read_bytes() == b"after the cut"


MEBIBYTE = 1 << 20


def test_a_program_that_floods_its_log_keeps_its_last_words_within_bounded_reading(tmp_path):
    log, path = RankLog(tmp_path, 0), tmp_path / "rank-0.log"
    path.write_bytes(b"loss=1\n" * MEBIBYTE + b"." * (3 * MEBIBYTE) + b"\nRuntimeError: why it ended")
    assert log.finish()[-1] == "RuntimeError: why it ended"
    assert log.lines[-1] == "RuntimeError: why it ended"
    assert log.follow() == []


def test_a_log_written_faster_than_it_is_read_is_still_cut_and_what_is_skipped_is_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("torchyard_agent.logs.ROTATE_BYTES", 3 * MEBIBYTE)
    log, path = RankLog(tmp_path, 0), tmp_path / "rank-0.log"
    with path.open("ab", buffering=0) as file:
        for number in range(8):
            file.write((b"x" * 1023 + b"\n") * 2048 + b"%d\n" % number)
            lines = log.follow()
            assert path.stat().st_size <= 3 * MEBIBYTE
        assert path.with_suffix(".log.1").stat().st_size <= 3 * MEBIBYTE
        assert lines[-1] == "7"
        assert "bytes skipped] " in lines[0]


REQUIRED = {
    "TORCHYARD_JOB": "job",
    "TORCHYARD_NAMESPACE": "default",
    "TORCHYARD_JOB_UID": "uid",
    "TORCHYARD_POD_NAME": "pod",
    "TORCHYARD_POD_INDEX": "0",
    "TORCHYARD_OPERATOR_URL": "http://127.0.0.1:1",
    "TORCHYARD_TOKEN_FILE": "/token",
    "TORCHYARD_RUN_DIR": "/run/torchyard",
}


@pytest.mark.parametrize(
    ("argv", "env", "words"),
    [
        (["true"], {}, "after `--`"),
        (["--"], {}, "is empty"),
        (["--port", "1", "--", "true"], {}, "unknown option `--port`"),
        (["--listen", "0.0.0.0:80", "--", "true"], {}, "loopback"),
        (["--", "true"], {"TORCHYARD_JOB": ""}, "TORCHYARD_JOB is not set"),
        (["--", "true"], {"TORCHYARD_PROCS": "many"}, "TORCHYARD_PROCS must be a number, got `many`"),
        (["--", "true"], {"TORCHYARD_OPERATOR_URL": "http://10.0.0.1"}, "https://"),
        (["--", "true"], {"TORCHYARD_OPERATOR_URL": "unix:intake.sock"}, "unix:/path"),
        (["--", "true"], {"TORCHYARD_OPERATOR_URL": "https://10.0.0.1"}, "TORCHYARD_CA_FILE"),
        (["--", "true"], {"TORCHYARD_METRIC_PATTERNS": '["("]'}, "TORCHYARD_METRIC_PATTERNS"),
        (["--", "true"], {"TORCHYARD_METRIC_PATTERNS": '["loss"]'}, "no named group"),
    ],
)
def test_wrong_settings_name_the_variable_and_what_it_should_be(argv, env, words):
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        settings.read(argv, {**REQUIRED, **env})


def test_defaults_are_those_of_the_protocol():
    read = settings.read(["--listen=127.0.0.1:9464", "--", "torchrun", "t.py", "--", "x"], REQUIRED)
    assert (read.listen, read.command) == (("127.0.0.1", 9464), ("torchrun", "t.py", "--", "x"))
    assert (read.address, read.procs, read.grace_seconds, read.orphan_seconds) == ("127.0.0.1", None, 30, 300)
    assert read.warm_seconds == 120
    assert (read.warm_start, read.hooks, read.preload, read.termination_log) == (True, True, (), None)
    assert str(read.log_dir) == "/run/torchyard/logs"


@pytest.mark.parametrize(
    ("argv", "kind"),
    [
        (["torchrun", "a.py"], command.Torchrun("/py", ("a.py",))),
        (["/opt/bin/torchrun", "-m", "a"], command.Torchrun("/py", ("-m", "a"))),
        (["python3.12", "-u", "-m", "torch.distributed.run", "a.py"], command.Torchrun("python3.12", ("a.py",))),
        (["python", "a.py"], command.Plain(("python", "a.py"))),
        (["accelerate", "launch", "a.py"], command.Plain(("accelerate", "launch", "a.py"))),
    ],
)
def test_torchrun_is_told_from_every_other_command(argv, kind):
    assert command.classify(argv, "/py") == kind


def test_the_interpreter_behind_torchrun_is_found_also_behind_a_long_path(tmp_path):
    for number, head in enumerate((f"#!{sys.executable}\n", f'#!/bin/sh\n\'\'\'exec\' "{sys.executable}" "$0" "$@"\n')):
        script = tmp_path / str(number) / "torchrun"
        script.parent.mkdir()
        script.write_text(head)
        script.chmod(0o755)
        assert command.torchrun_interpreter(str(script)) == sys.executable


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


def test_a_shortened_dump_keeps_the_head_of_every_rank():
    text = "\n\n".join(f"rank {rank}:\n" + "frame\n" * 1000 for rank in range(8))
    short = dump.shorten(text)
    assert len(short.encode()) <= 6 * 1024
    assert all(f"rank {rank}:" in short for rank in range(8))


def test_arguments_of_a_cold_start_are_a_vector_and_never_a_shell_string():
    arguments = exec_arguments({"logDir": "/logs", "runDir": "/run"}, ["python", "a b.py", "; rm"])
    assert arguments[-3:] == ["python", "a b.py", "; rm"]


def test_the_termination_log_keeps_the_end_of_the_traceback_within_4096_bytes():
    ended = {
        "round": 3,
        "failure": {"rank": 1, "exception": "ValueError", "message": "bad", "traceback": "é" * 9000 + "the end"},
    }
    log = json.loads(termination.text(1, ended))
    assert len(termination.text(1, ended).encode()) <= 4096
    assert (log["code"], log["round"], log["failure"]["message"]) == (1, 3, "bad")
    assert log["failure"]["traceback"].endswith("the end")
    assert json.loads(termination.text(0, None)) == {"code": 0, "round": None, "failure": None}


@pytest.mark.parametrize(
    ("names", "indices"),
    [(None, [0, 1]), ("", []), ("-1", []), ("1", [1]), ("GPU-bbbb", [1]), ("GPU-aaaa,GPU-bbbb", [0, 1]), ("GPU-", [])],
)
def test_only_the_gpus_that_workers_may_use_are_told_of(names, indices):
    both = [{"index": 0, "uuid": "GPU-aaaa-1"}, {"index": 1, "uuid": "GPU-bbbb-2"}]
    assert [gpu["index"] for gpu in gpus.visible(both, names)] == indices
