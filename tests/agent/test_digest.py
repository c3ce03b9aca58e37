"""What is shown of a failure first: the exception and the program's own frames, not those of libraries."""

from torchyard_agent.telemetry.digest import digest

LIBRARY = "/usr/lib/python3.12/site-packages/torch/nn/modules/module.py"
DEEP = [f'  File "{LIBRARY}", line {number}, in _call_impl\n    return forward_call(*args)' for number in range(30)]
TRACE = [
    "Traceback (most recent call last):",
    '  File "/work/train.py", line 40, in <module>',
    "    main()",
    "    ~~~~^^",
    '  File "/work/train.py", line 31, in main',
    "    loss = model(batch)",
    *"\n".join(DEEP).split("\n"),
    "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x3 and 2x2)",
]


def test_the_users_frames_come_first_and_output_before_the_error_stays():
    assert digest("", ["epoch 1", "loss 0.3", *TRACE], 20) == [
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x3 and 2x2)",
        '  File "/work/train.py", line 31, in main',
        "    loss = model(batch)",
        '  File "/work/train.py", line 40, in <module>',
        "    main()",
        "  (30 more frames, most of libraries: see the log)",
        "output before that:",
        "epoch 1",
        "loss 0.3",
    ]


def test_a_traceback_that_is_not_in_the_log_is_read_from_the_failure_file():
    found = digest("\n".join(TRACE), ["epoch 1"], 20)
    assert found[1] == '  File "/work/train.py", line 31, in main'


def test_of_several_exceptions_the_last_one_is_shown():
    handled = ["Traceback (most recent call last):", '  File "/work/a.py", line 1, in f', "KeyError: 1", ""]
    found = digest(
        "", [*handled, "During handling of the above exception, another exception occurred:", "", *TRACE], 20
    )
    assert found[0].startswith("RuntimeError: mat1")


def test_of_the_exceptions_of_a_program_and_of_what_started_it_the_cause_is_shown():
    launcher = [
        "Traceback (most recent call last):",
        '  File "/work/driver.py", line 3, in <module>',
        "subprocess.CalledProcessError: Command 'train.py' returned non-zero exit status 1.",
    ]
    log = ["epoch 1", *TRACE, "E1128 10:00:00 torch/distributed: failed (exitcode: 1)", *launcher]
    for cause in (TRACE, TRACE[-4:]):  # whole, and without its beginning
        found = digest("\n".join(cause), log, 20)
        assert found[:2] == [TRACE[-1], '  File "/work/train.py", line 31, in main']
        assert found[-2:] == ["output before that:", "epoch 1"]
    assert digest("\n".join(TRACE), launcher, 20)[0] == TRACE[-1], "another program's, of which the log has nothing"
    assert digest("", log, 20)[0].startswith("subprocess.CalledProcessError")


def test_without_a_frame_of_the_program_the_last_lines_are_shown():
    only = ["Traceback (most recent call last):", *DEEP[0].split("\n"), "RuntimeError: inside"]
    for output in (only, ["killed"], [f"line {number}" for number in range(50)]):
        assert digest("", output, 20) == output[-20:]


def test_where_the_log_is_empty_the_end_of_the_traceback_is_shown():
    assert digest("ValueError: 1\nin two\nlines", [], 2) == ["in two", "lines"]


def test_lines_and_their_number_are_bounded():
    long = ["Traceback (most recent call last):", '  File "/work/train.py", line 1, in f', f"ValueError: {'x' * 9999}"]
    found = digest("", ["before"] * 90 + long, 20)
    assert len(found) == 20
    assert max(map(len, found)) <= 200


def test_of_a_crash_its_stack_is_shown_and_no_frame_of_a_handled_exception():
    handled = [TRACE[0], '  File "/work/train.py", line 2, in load', "    read()", "KeyError: 'cache'"]
    stack = ["Fatal Python error: Segmentation fault", "", "Current thread 0x7f (most recent call first):"]
    crash = [*stack, '  File "/work/train.py", line 9 in step']
    of_torchyard = [
        '  File "torchyard-agent.pyz/torchyard_agent/workers/worker.py", line 1 in run',
        "Extension modules: a",
    ]
    found = digest("\n".join(crash), [*handled, *crash, *of_torchyard], 20)
    assert found == [crash[0], crash[2], crash[3], "output before that:", *handled]
    assert digest("\n".join(crash), [], 2) == [crash[0], crash[2]]
