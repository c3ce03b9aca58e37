"""Commands that start something which starts the program: shells, launchers, drivers. The program is what counts."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from torchyard_agent.files import write_json
from torchyard_agent.telemetry.progress import ReportWriter
from torchyard_agent.workers import evidence, failure
from torchyard_agent.workers.stacks import listed

STEPS = """
import os, sys, time
import torch
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.{optimizer}([weight], lr=0.1)
def make(steps):
    for _ in range(steps):
        weight.grad = torch.ones(1)
        optimizer.step()
"""
SGD = STEPS.format(optimizer="SGD")
# Saves for longer than the five seconds that a stop gives to everybody.
SAVES_SLOWLY = """
import os, signal, sys, time
def save(*_):
    time.sleep(6)
    open("saved", "a").write("once ")
    sys.exit(3)
signal.signal(signal.SIGTERM, save)
print("waiting", flush=True)
while True:
    time.sleep(0.1)
"""


def wrote(folder, name, *, rank=0, exception="ValueError", message="boom", time=100.0, **more):
    write_json(folder / name, {"rank": rank, "exception": exception, "message": message, "time": time, **more})


def found(folder, *, alone=True, code=1):
    return evidence.found(evidence.Ages(folder), 0, 7, code=code, alone=alone)


def test_the_programs_own_failure_file_precedes_the_workers_exception(tmp_path):
    wrote(tmp_path, "failure.0.8.json", message="of a helper")
    wrote(tmp_path, "failure.0.7.json", message="of the worker")
    assert found(tmp_path)["message"] == "of the worker"
    wrote(tmp_path, "failure.0.json", message="stated", code=64)
    assert found(tmp_path)["message"] == "stated"


WRAPPERS = (
    "subprocess.CalledProcessError",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError",
    "torch.multiprocessing.spawn.ProcessExitedException",
)


@pytest.mark.parametrize("wrapper", [None, *WRAPPERS])
def test_the_exception_of_a_program_precedes_that_of_its_launcher_or_the_exit_code_of_its_shell(tmp_path, wrapper):
    if wrapper:
        wrote(tmp_path, "failure.0.7.json", exception=wrapper, message="it failed")
    wrote(tmp_path, "failure.0.8.json", exception="RuntimeError", message="Connection closed by peer", time=98.0)
    wrote(tmp_path, "failure.1.9.json", rank=1, message="boom", time=99.0)
    assert (found(tmp_path)["rank"], found(tmp_path)["message"]) == (1, "boom")
    assert found(tmp_path, alone=False)["rank"] == 0, "a worker of torchrun answers for its own rank"


@pytest.mark.parametrize("code", [3, 137])
def test_a_failure_below_a_worker_is_its_cause_only_if_its_exit_code_is_passed_on(tmp_path, code):
    wrote(tmp_path, "failure.0.8.json", message="handled")
    assert found(tmp_path, code=1)["message"] == "handled"
    assert found(tmp_path, code=code) is None
    wrote(tmp_path, "failure.0.8.json", message="printed, then sys.exit(3)", exitCode=3)
    assert (found(tmp_path, code=code) is None) is (code != 3)
    wrote(tmp_path, "failure.0.7.json", exception="subprocess.CalledProcessError", message="it died with <Signals.9>")
    assert found(tmp_path)["message"] == "it died with <Signals.9>"
    message = "Command 'x' returned non-zero exit status 3."
    wrote(tmp_path, "failure.0.7.json", exception="subprocess.CalledProcessError", message=message)
    assert found(tmp_path)["message"] == "printed, then sys.exit(3)"


def test_an_exit_in_a_handler_that_was_caught_is_no_end(tmp_path):
    wrote(tmp_path, "failure.0.7.json", message="handled", exitCode=3)
    assert found(tmp_path, code=3)["message"] == "handled"
    assert found(tmp_path, code=1) is None


def test_a_failure_that_was_handled_long_ago_is_no_cause(tmp_path):
    ages = evidence.Ages(tmp_path)
    wrote(tmp_path, "failure.0.8.json", message="no flash attention here")
    for second in range(61):
        ages.look(float(second))
    assert evidence.found(ages, 0, 7, code=1, alone=True)["message"] == "no flash attention here"
    ages.look(61.0)
    assert evidence.found(ages, 0, 7, code=1, alone=True) is None
    wrote(tmp_path, "failure.0.7.json", exception="subprocess.CalledProcessError", message="died with SIGKILL")
    assert evidence.found(ages, 0, 7, code=1, alone=True)["message"] == "died with SIGKILL"


def test_on_a_machine_that_stands_still_a_failure_does_not_become_old(tmp_path):
    ages = evidence.Ages(tmp_path)
    ages.look(0.0)
    wrote(tmp_path, "failure.0.8.json", message="of the program")
    wrote(tmp_path, "failure.0.7.json", exception="subprocess.CalledProcessError", message="of the driver", time=400.0)
    ages.look(1.0)
    ages.look(500.0)
    assert evidence.found(ages, 0, 7, code=1, alone=True)["message"] == "of the program"


def test_a_failure_before_the_last_program_began_or_of_one_that_it_started_was_handled(tmp_path):
    wrote(tmp_path, "failure.0.8.json", message="before it began", pid=8, parent=7, started=85.0, time=89.0)
    wrote(tmp_path, "failure.0.10.json", message="a probe that it started", pid=10, parent=9, started=94.0, time=95.0)
    wrote(tmp_path, "failure.0.9.json", message="the last program", pid=9, parent=7, started=90.0, time=99.0)
    assert found(tmp_path)["message"] == "the last program"
    wrote(tmp_path, "failure.1.11.json", message="beside it", rank=1, pid=11, parent=7, started=90.0, time=98.0)
    assert found(tmp_path)["message"] == "beside it"


def test_the_exception_that_a_spawned_process_raised_is_read_from_the_one_that_quotes_it():
    quoted = (
        "\n\n-- Process 1 terminated with the following error:\nTraceback (most recent call last):\n"
        '  File "train.py", line 3, in f\n    raise my.Error("no")\nmy.Error: no\n'
    )
    wrapped = {"exception": "torch.multiprocessing.spawn.ProcessRaisedException", "message": quoted, "time": 1.0}
    cause = failure.unwrapped(wrapped)
    assert (cause["exception"], cause["message"]) == ("my.Error", "no")
    assert cause["traceback"].endswith('raise my.Error("no")\nmy.Error: no')
    assert failure.unwrapped({**wrapped, "message": "no traceback"})["message"] == "no traceback"


@pytest.mark.e2e
def test_a_program_below_a_shell_has_the_whole_grace_period_and_its_answer_is_reported(pod, script, until):
    one = pod("sh", "-c", f"{sys.executable} {script(SAVES_SLOWLY)}; echo the shell goes on")
    one.ready()
    one.run()
    one.until_it_says("waiting")
    one.tell("save-and-stop", round=one.round, graceSeconds=60)
    ended = one.ended()
    assert (one.run_dir.parent / "saved").read_text() == "once "
    assert (ended["code"], ended["asked"], ended["saved"]) == (143, True, False)
    assert (ended["answer"], ended["answerCode"]) == ("ended", 0)
    assert 6 <= ended["answerSeconds"] < 60
    assert "the shell goes on" in one.log()


@pytest.mark.e2e
@pytest.mark.parametrize(("trap", "answer"), [("trap '' TERM; ", "deaf"), ("trap : TERM; ", "killed")])
def test_a_program_that_does_not_exit_is_not_reported_as_saved(pod, trap, answer):
    one = pod("sh", "-c", trap + "echo waiting; while :; do sleep 0.1; done")
    one.ready()
    one.run()
    one.until_it_says("waiting")
    one.tell("save-and-stop", round=one.round, graceSeconds=1)
    ended = one.ended()
    assert (ended["answer"], ended["saved"], ended["asked"]) == (answer, False, True)


@pytest.mark.e2e
def test_a_stop_waits_for_a_program_below_a_shell_that_ends_at_once(pod, script):
    quick = SAVES_SLOWLY.replace("time.sleep(6)", "time.sleep(2)")
    one = pod("sh", "-c", f"{sys.executable} {script(quick)}; true")
    one.ready()
    one.run()
    one.until_it_says("waiting")
    one.tell("stop", round=one.round)
    one.ended()
    assert (one.run_dir.parent / "saved").read_text() == "once "


DRIVER = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "raise LookupError('handled')"])
subprocess.run([sys.executable, {program!r}], check=True)
"""


@pytest.mark.e2e
def test_steps_and_the_exception_of_a_program_that_a_driver_starts(pod, script):
    program = script(SGD + "make(5)\nraise ArithmeticError('of the program')\n", "program.py")
    one = pod(sys.executable, script(DRIVER.format(program=str(program)), "driver.py"))
    one.ready()
    one.run()
    ended = one.ended()
    assert (ended["failure"]["exception"], ended["failure"]["message"]) == ("ArithmeticError", "of the program")
    assert ended["lines"][0] == "ArithmeticError: of the program", "the driver has printed another exception after it"
    report = one.intake.state(one.name)["reports"][0]
    assert (report["step"], report["roundSteps"], report["fromStart"]) == (5, 5, True)


def test_the_report_of_a_program_that_has_ended_is_inherited_by_the_next_one(tmp_path):
    ended = subprocess.Popen(["true"])
    for pid, owner in ((os.getpid(), "before"), (ended.pid, "after")):
        ended.wait()
        write_json(tmp_path / "report.0.json", {"round": 1, "rank": 0, "step": 9, "pid": pid})
        writer = ReportWriter(tmp_path, {}, yields=True)
        writer.write()
        step = json.loads((tmp_path / "report.0.json").read_text())["step"]
        assert (owner, step) in {("before", 9), ("after", 0)}
        writer.write()


@pytest.mark.e2e
def test_the_first_cause_among_the_ranks_of_a_launcher_in_a_shell(pod, script):
    program = script(
        "import os, torch.distributed as dist\ndist.init_process_group('gloo')\ndist.barrier()\n"
        "if os.environ['RANK'] == '1': raise ArithmeticError('of rank 1')\ndist.barrier()\n"
    )
    torchrun = f"{Path(sys.executable).parent}/torchrun"
    one = pod("sh", "-c", f"{torchrun} --nproc-per-node=2 {program}; exit $?")
    one.ready()
    one.run()
    cause = one.ended()["failure"]
    assert (cause["rank"], cause["exception"], cause["message"]) == (1, "ArithmeticError", "of rank 1")
    assert cause["secondary"] is False


@pytest.mark.e2e
def test_two_optimizers_used_one_after_the_other_both_count(node, script):
    node.run(program=script(SGD + "make(3)\noptimizer = torch.optim.Adam([weight])\nmake(9)\n"))
    assert node.ended()["code"] == 0
    report = node.intake.state(node.name)["reports"][0]
    assert (report["counter"], report["step"]) == (12, 11), "the change from one to the other looks like a turn of two"


@pytest.mark.e2e
def test_the_steps_of_a_restored_optimizer_are_the_programs(node, script):
    restored = STEPS.format(optimizer="Adam") + (
        "other = torch.optim.Adam([weight])\nother.state[weight] = {'step': torch.tensor(40.0), "
        "'exp_avg': torch.zeros(1), 'exp_avg_sq': torch.zeros(1)}\noptimizer = other\nmake(2)\n"
    )
    node.run(program=script(restored))
    assert node.ended()["code"] == 0
    report = node.intake.state(node.name)["reports"][0]
    assert (report["step"], report["roundSteps"], report.get("fromStart")) == (42, 2, None)


@pytest.mark.e2e
def test_stacks_come_without_touching_the_signals_of_the_program(node, script):
    program = (
        "import signal, time\nfor number in (signal.SIGUSR1, signal.SIGUSR2):\n"
        "    signal.signal(number, lambda number, _: print('caught', number, flush=True))\n"
        "print('waiting', flush=True)\nwhile True: time.sleep(0.1)\n"
    )
    node.run(program=script(program))
    node.until_it_says("waiting")
    assert "most recent call first" in listed(node.run_dir)[0]["stacks"]
    assert "caught" not in node.log()
    node.process.send_signal(signal.SIGUSR2)
    node.until_it_says(f"caught {signal.SIGUSR2.value}")
