"""Why a round ended: what programs leave behind, which failure came first, and what is reported of it."""

import json

import pytest

from torchyard_agent import termination
from torchyard_agent.control.payload import BODY_BYTES, fit
from torchyard_agent.workers import failure, printed


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
        (None, "", 76, False),
        (None, "", 137, False),
    ],
)
def test_failures_that_only_say_a_peer_went_away_are_secondary(exception, message, code, secondary):
    found = {"exception": exception, "message": message}
    assert cause(code=code, found=found)["secondary"] is secondary


@pytest.mark.parametrize(("code", "written", "classified"), [(76, 76, True), (76, 1, False), (70, None, False)])
def test_an_exit_code_is_classified_only_if_a_failure_file_names_it(code, written, classified):
    found = cause(code=code, found={"code": written} if written else None)
    assert found["classified"] is classified
    assert found["secondary"] is classified


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (75, "exit code 75"),
        (127, "exit code 127 (of a shell: a command was not found)"),
        (137, "killed by SIGKILL"),
        (128 + 45, "killed by signal 45"),
        (192, "killed by SIGRTMAX"),
        (193, "exit code 193"),
        (255, "exit code 255"),
    ],
)
def test_a_code_above_those_of_signals_is_a_programs_own(code, words):
    assert failure.describe(code) == words


@pytest.mark.parametrize(
    ("code", "found", "only"),
    [
        (1, None, True),
        (255, {"code": 255}, True),
        (137, None, False),  # the signal says more
        (1, {"exception": "ValueError"}, False),
        (1, {"message": "exit code 1"}, False),  # in the program's own words
    ],
)
def test_a_failure_is_an_exit_code_only_where_the_program_left_no_words(code, found, only):
    assert cause(code=code, found=found)["exitCodeOnly"] is only


def test_the_first_cause_is_the_earliest_failure_that_is_no_consequence():
    lost = cause(rank=0, time=1.0, found={"exception": "ConnectionError", "message": "x"})
    late, early = cause(rank=1, time=3.0), cause(rank=2, time=2.0)
    assert failure.first_cause([lost, late, early])["rank"] == 2
    assert failure.first_cause([lost])["rank"] == 0
    assert failure.first_cause([]) is None


TRACEBACK = ["Traceback (most recent call last):", '  File "a.py", line 1', "my.Error: no: way"]
IGNORED = ["Exception ignored in: <function A.__del__ at 0x7f>", *TRACEBACK[:2], "AttributeError: gone"]
WRAPPED = [*TRACEBACK[:2], "subprocess.CalledProcessError: Command 'train' returned non-zero exit status 1."]
SPAWNED = ["Process SpawnProcess-1:", *TRACEBACK]


def named(lines, *, watched=False):
    found = printed.cause(lines, watched=watched)
    return f"{found['exception']}: {found['message']}" if found else ""


def test_the_exception_that_ended_a_program_is_read_from_its_output_with_its_traceback():
    assert printed.cause(["step 1", *TRACEBACK, ""], watched=False) == {
        "exception": "my.Error",
        "message": "no: way",
        "traceback": "\n".join(TRACEBACK),
    }
    assert named(["all is well"]) == ""
    for name in ("Exception", "Problem", "a.b.StopIteration", "main.<locals>.Odd"):
        assert named([*TRACEBACK[:2], name]) == f"{name}: "


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(["\tof two lines", "", "For debugging consider passing CUDA_LAUNCH_BLOCKING=1"], id="message"),
        pytest.param(IGNORED, id="destructor"),
        pytest.param(["Exception in thread Thread-1:", *TRACEBACK[:2], "ValueError: late"], id="thread"),
        pytest.param(
            [
                "/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There",
                "  warnings.warn('resource_tracker: There appear to be %d leaked'",
                "[rank0]:[W1128 08:00:00.000 ProcessGroupNCCL.cpp:1553] Warning: destroy_process_group()",
                "wandb: Run history:",
                "W1129 08:22:19.000000 12 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 7",
                "make: *** [Makefile:2: train] Error 1",
                "srun: error: node1: task 0: Exited with exit code 1",
            ],
            id="what ends with it",
        ),
        pytest.param(WRAPPED, id="what started it"),
    ],
)
def test_what_interpreters_and_launchers_print_as_they_end_may_follow(after):
    assert named(["step 1", *TRACEBACK, *after]) == "my.Error: no: way"


@pytest.mark.parametrize(
    "after",
    [
        ["retrying"],
        ["step 2 loss=0.1"],
        [" 30%|###  | 3/10"],
        ["I1129 08:22:19.000000 1 train.py:3] step 2"],
        [*IGNORED, "step 2"],
        ["", "done"],
    ],
)
def test_a_traceback_that_other_output_follows_was_handled(after):
    assert named([*TRACEBACK, *after]) == ""
    assert named([*TRACEBACK, *after, *WRAPPED]).startswith("subprocess.CalledProcessError: ")


def test_what_a_thread_or_a_destructor_raised_ended_no_program():
    assert named(IGNORED) == named(["Exception in thread Thread-1 (f):", *TRACEBACK]) == ""


def test_a_process_that_would_have_left_a_file_was_ended_by_its_children_alone():
    assert named(TRACEBACK, watched=True) == ""
    assert named(["step 1", *SPAWNED], watched=True) == named([*SPAWNED, *IGNORED], watched=True) == "my.Error: no: way"
    assert named([*SPAWNED, "one worker less"], watched=True) == ""


def test_lines_of_a_rank_are_read_without_the_prefix_of_their_launcher():
    assert named([f"[rank0]: {line}" for line in TRACEBACK]) == "my.Error: no: way"


GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "train.py", line 1, in <module>
  |     raise ExceptionGroup("many", [ValueError("one"), TypeError("two")])
  | ExceptionGroup: many (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | ValueError: one
    +---------------- 2 ----------------
    | TypeError: two
    +------------------------------------
""".splitlines()


def test_a_group_of_exceptions_is_named_with_its_members():
    found = printed.cause(["before", *GROUP], watched=False)
    assert (found["exception"], found["message"]) == (
        "ExceptionGroup",
        "many (2 sub-exceptions): ValueError: one; TypeError: two",
    )
    assert found["traceback"] == "\n".join(GROUP)


def test_a_crash_is_reported_with_the_frames_of_the_program():
    frames = [
        '  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at',
        '  File "train.py", line 2 in f',
    ]
    ours = ['  File "/x/torchyard_agent/workers/worker.py", line 30 in run', '  File "<string>", line 1 in <module>']
    text = ["Fatal Python error: Segmentation fault", "", "Current thread 0x1 (most recent call first):", *frames]
    assert failure.from_crash("\n".join([*text, *ours, "", "Extension modules: torch._C (total: 1)"]), 139) == {
        "message": f"Fatal Python error: Segmentation fault, at {frames[0].strip()}",
        "traceback": "\n".join(text),
    }
    assert failure.from_crash("killed", 139) == {}
    assert failure.from_crash("\n".join(text), 137) == {}, "of another process: nothing is printed by SIGKILL"


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


def test_a_request_always_fits_and_loses_the_least_needed_first():
    body = {
        "state": "running",
        "exit": {"code": 1, "failure": {"rank": 3, "traceback": "t" * 4000}, "lines": ["l" * 200] * 20},
        "reports": [{"rank": rank, "step": 1, "metrics": {f"m{i}": 1.0 for i in range(32)}} for rank in range(16)],
        "gpus": [{"uuid": "GPU-" + "0" * 36}] * 8,
        "notices": ["n" * 200] * 8,
    }
    data = fit(body)
    assert len(data) <= BODY_BYTES
    kept = json.loads(data)
    assert kept["exit"]["failure"]["rank"] == 3
    assert kept["reports"][0]["step"] == 1


@pytest.mark.parametrize("character", ["t", "字", "\x1b", "\ud800", "😀"])
def test_why_a_round_ended_is_reported_in_any_language_together_with_reports_and_gpus(character):
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
    assert "traceback" not in kept["exit"]["failure"], "its digest is in the lines"
    assert kept["exit"]["lines"]
    assert (kept["reports"], kept["gpus"], kept["notices"]) == (body["reports"], body["gpus"], body["notices"])


def test_a_failure_is_truncated_to_fit_a_request_and_the_termination_log():
    bounded = failure.bounded({**cause(), "traceback": "字" * 9000 + "the end", "exception": "E" * 9000})
    assert len(bounded["traceback"].encode()) <= 4000
    assert bounded["traceback"].endswith("the end")
    assert len(bounded["exception"]) == 200


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
