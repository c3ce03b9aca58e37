"""What a round's early end costs: progress pays for restarts, repetition ends the job.

- A round that advanced the newest checkpoint costs nothing. A job that reports none may start from step 0 each time;
  there only a step beyond the best of all earlier rounds is progress. Steps that are counted for a program start from 0
  in every round, so one that resumes by itself seems slower than it is unless it reports its own step: the safe side.
- What no code is to blame for (a lost pod, an eviction, a preemption) is neither counted nor held against progress.
- A GPU that ran out of memory is tried again with the smaller micro-batch that its worker names. That costs nothing
  either, since each is at most half of the last one; where there is no smaller one, the job ends.
- A container that could not be started is no restart: it is tried again with a growing delay, whatever the budget and
  the policy say, and ends the job after several times in a row (`Reason.start_attempts`).
- Everything else without progress is counted, delays the next round and may end the job.
"""

from msgspec import Struct

from torchyard.api import durations
from torchyard.api.reasons import Reason
from torchyard.api.spec_reliability import Restart
from torchyard.api.status import Attempt, Restarts, TrainingJobStatus
from torchyard.engine.causes import Outcome, start_failures

# Before a container that could not be started is tried again; doubles each time.
START_SECONDS, LONGEST_START_SECONDS = 5.0, 120.0


class Charge(Struct, frozen=True, kw_only=True):
    """The cost of one round. `verdict`: why the job ends; None: another round is due after `delay` seconds."""

    restarts: Restarts
    counted: bool
    steps_gained: int
    delay: float = 0.0
    verdict: Reason | None = None
    micro_batch: int | None = None  # of the next rounds, if this failure taught a smaller one


def charge(status: TrainingJobStatus, policy: Restart, cause: Outcome, end_step: int) -> Charge:
    """Charge the end of the newest round, whose attempt is the last of the list while the round is open.

    Args:
        status: before the charge; `checkpoint` is the newest known. A job with no attempt yet failed before round 1.
        policy: `spec.restart`.
        cause: the first cause.
        end_step: newest step of the round.
    """
    attempt = status.attempts[-1] if status.rendezvous.open and status.attempts else None
    earlier = status.attempts[:-1] if attempt is not None else status.attempts
    before = status.restarts
    best = max([before.best_step, *(each.end_step for each in earlier)])
    gained = _gained(status, attempt, best, end_step) if attempt is not None else 0
    smaller = _smaller_micro_batch(cause, status.rendezvous.micro_batch)
    counted = cause.counted and gained <= 0 and smaller is None
    no_progress = 0 if gained > 0 else before.no_progress + counted
    after = Restarts(
        total=before.total,  # of rounds: counted when the next one opens
        counted=before.counted + counted,
        no_progress=no_progress,
        best_step=max(best, end_step),
    )
    return Charge(
        restarts=after,
        counted=counted,
        steps_gained=max(0, gained),
        delay=_start_delay(earlier) if cause.start_attempts else _delay(policy, no_progress) if counted else 0.0,
        verdict=_verdict(policy, cause, after, earlier, end_step, counted=counted),
        micro_batch=smaller,
    )


def _smaller_micro_batch(cause: Outcome, current: int | None) -> int | None:
    """The micro-batch to go on with: half of the current one or less, so that the tries come to an end."""
    tried = cause.next_micro_batch or 0
    return tried if tried > 0 and (current is None or tried <= current // 2) else None


def _gained(status: TrainingJobStatus, attempt: Attempt, best: int, end_step: int) -> int:
    if status.checkpoint is not None:
        return status.checkpoint.step - attempt.start_step
    return end_step - best


def _verdict(
    policy: Restart, cause: Outcome, after: Restarts, earlier: list[Attempt], end_step: int, *, counted: bool
) -> Reason | None:
    if cause.start_attempts:
        any_start = cause.reason == Reason.CONTAINER_CANNOT_START
        alike = start_failures(earlier) if any_start else start_failures(earlier, lambda code: code == cause.reason)
        return cause.reason if len(alike) + 1 >= cause.start_attempts else None
    return cause.reason if cause.permanent else _of_budget(policy, cause, after, earlier, end_step, counted=counted)


def _of_budget(
    policy: Restart, cause: Outcome, after: Restarts, earlier: list[Attempt], end_step: int, *, counted: bool
) -> Reason | None:
    if policy.policy == "Never":
        return Reason.RESTARTS_DISABLED
    if cause.counted and policy.max_restarts == 0 and _smaller_micro_batch(cause, None) is None:
        return Reason.MAX_RESTARTS_EXCEEDED  # progress pays for restarts only where there are any
    if cause.counted and _repeats(cause, earlier, end_step):
        return Reason.REPEATED_FAILURE
    if counted and cause.next_micro_batch == 0:
        return cause.reason
    if cause.counted and cause.reason.tried_once_more and counted and earlier and _class(earlier[-1]) == cause.reason:
        return cause.reason
    if counted and policy.max_restarts is not None and after.counted > policy.max_restarts:
        return Reason.MAX_RESTARTS_EXCEEDED
    if counted and after.no_progress >= policy.no_progress_limit:
        return Reason.NO_PROGRESS
    return None


def _repeats(cause: Outcome, earlier: list[Attempt], end_step: int) -> bool:
    """Whether an exception of user code came a second time at the same step; signals and outages are no evidence."""
    # Where a program leaves no exception, its agent words the exit code: two of those need not be the same error.
    raised = cause.cause.exception not in {"", f"exit code {cause.cause.exit_code}"}
    if not cause.reason.repeatable or not raised or cause.secondary:
        return False
    return any(
        each.cause is not None
        and each.end_step == end_step
        and (each.cause.class_, each.cause.exception) == (cause.cause.class_, cause.cause.exception)
        for each in earlier
    )


def _class(attempt: Attempt) -> str:
    return attempt.cause.class_ if attempt.cause is not None else ""


def _start_delay(earlier: list[Attempt]) -> float:
    return float(min(LONGEST_START_SECONDS, START_SECONDS * 2.0 ** len(start_failures(earlier))))


def _delay(policy: Restart, failures: int) -> float:
    initial, most = durations.seconds(policy.backoff.initial), durations.seconds(policy.backoff.max)
    return float(min(most, initial * 2.0 ** min(failures - 1, 32)))
