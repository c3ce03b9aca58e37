"""Endings of jobs whose script fails, and that a slow one does not: their status."""

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("one_template")]


STEPS = """
import sys, time, torch
parameter = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([parameter], lr=0.1)
for step in range(1, 10):
    parameter.grad = torch.ones(1)
    optimizer.step()
    if step == 7:
        print("about to do it", flush=True)
        {at_seven}
"""


QUICK = {"nodes": 1, "device": "cpu", "restart": {"backoff": {"initial": "1s", "max": "1s"}}, "gracePeriod": "10s"}


async def test_a_script_that_always_raises_ends_failed_with_the_evidence(laptop):
    job = await laptop.run(script=STEPS.format(at_seven="raise RuntimeError('seven is too much')"), **QUICK)
    status = job.status
    assert status.state == "Failed"
    assert len(status.attempts) >= 2, "it was tried again"
    cause = status.attempts[-1].cause
    assert (cause.rank, cause.exit_code) == (0, 1)
    assert "RuntimeError" in cause.exception
    assert "seven is too much" in cause.exception
    assert any("about to do it" in line for line in cause.lines)
    assert status.message
    assert not laptop.left


SAYS_64 = """
import json, os, sys
with open(os.path.join(os.environ["TORCHYARD_RUN_DIR"], "failure.0.json"), "w") as file:
    json.dump({"code": 64, "message": "lr: -1 is not positive"}, file)
sys.exit(64)
"""


async def test_a_failure_file_with_code_64_fails_at_once(laptop):
    job = await laptop.run(command=["python3", "-c", SAYS_64], **QUICK)
    assert (job.status.state, job.status.reason) == ("Failed", "ConfigurationInvalid")
    assert "lr: -1 is not positive" in job.status.message
    assert len(job.status.attempts) == 1
    assert job.status.attempts[0].cause.exit_code == 64


@pytest.mark.parametrize("code", [64, 75, 127])
async def test_an_exit_code_of_a_programs_own_is_an_ordinary_failure(laptop, code):
    job = await laptop.run(command=["sh", "-c", f"echo about to end; exit {code}"], **QUICK)
    assert (job.status.state, len(job.status.attempts)) == ("Failed", 2 if code == 127 else 3)
    cause = job.status.attempts[-1].cause
    assert (cause.class_, cause.exit_code, cause.lines) == ("WorkerFailed", code, ["about to end"])
    assert f"exit code {code}" in job.status.message


@pytest.mark.parametrize("command", [["torchrun", "nowhere.py"], ["no-such-program-anywhere"]])
async def test_a_command_that_cannot_be_started_is_named(laptop, command):
    job = await laptop.run(command=command, **QUICK)
    assert job.status.state == "Failed"
    assert len(job.status.attempts) == 1
    assert command[-1] in job.status.message
    assert job.status.attempts[0].cause.exit_code in {126, 127}


async def test_a_missing_working_folder_ends_the_job_with_a_sentence(laptop):
    job = await laptop.run(command=["true"], workingDir="nowhere", **QUICK)
    assert job.status.state == "Failed"
    assert "spec.workingDir" in job.status.message


async def test_a_slow_but_healthy_step_restarts_nothing(laptop):
    job = await laptop.run(script=STEPS.format(at_seven="time.sleep(12)"), **QUICK)
    assert job.status.state == "Succeeded", job.status.message
    assert job.status.restarts.total == 0
    assert job.status.progress.step == 9
