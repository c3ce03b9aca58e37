"""What a restart costs a script that reports no checkpoint: only steps that no earlier round has made are progress."""

import random

import pytest

from torchyard.api.reasons import Reason
from torchyard.api.spec_reliability import Restart
from torchyard.api.status import MAX_ATTEMPTS, Attempt, Cause, CheckpointStatus, Rendezvous, TrainingJobStatus
from torchyard.reconcile.failures import Outcome
from torchyard.reconcile.restart_policy import decide_restart

KILLED = Cause(rank=0, exit_code=137, class_="WorkerFailed")
FAILED = Outcome(rank=0, state="failed", reason=Reason.WORKER_FAILED, code=137, cause=KILLED)


def rounds_until_the_end(steps, policy, most=10_000):
    """How many rounds a job gets whose n-th round ends at `steps(n)`; `most` if it is never ended."""
    status = TrainingJobStatus()
    for number in range(1, most):
        attempts = [*status.attempts, Attempt(round=number, end_step=steps(number))][-MAX_ATTEMPTS:]
        status = TrainingJobStatus(attempts=attempts, restarts=status.restarts, rendezvous=Rendezvous(open=True))
        decision = decide_restart(status, policy, FAILED, steps(number))
        if decision.final_reason:
            return number
        status = TrainingJobStatus(attempts=attempts, restarts=decision.restarts)
    return most


@pytest.mark.parametrize("limit", [3, 30])
@pytest.mark.parametrize("seed", range(5))
def test_a_script_that_starts_over_and_fails_each_time_is_ended(limit, seed):
    dice = random.Random(seed)
    ends = [dice.randrange(1, 1_000_000) for _ in range(10_000)]
    # New records among n random ends are about log(n): they cannot pay for ever, however long ago the record was.
    assert rounds_until_the_end(lambda number: ends[number], Restart(no_progress_limit=limit)) < 40 * limit


def test_a_script_that_reports_its_resumed_step_may_restart_forever():
    assert rounds_until_the_end(lambda number: 100 * number, Restart(), most=200) == 200


def test_a_script_that_resumes_without_reporting_it_is_ended_early_and_never_late():
    counted_from_zero = {1: 100}
    assert rounds_until_the_end(lambda number: counted_from_zero.get(number, 90), Restart()) == 4


def test_a_checkpoint_that_is_reported_outweighs_every_step():
    status = TrainingJobStatus(
        attempts=[Attempt(round=1, start_step=100, end_step=130)],
        checkpoint=CheckpointStatus(step=120),
        rendezvous=Rendezvous(open=True),
    )
    assert decide_restart(status, Restart(), FAILED, 130).steps_gained == 20
