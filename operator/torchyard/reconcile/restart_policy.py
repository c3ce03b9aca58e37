"""The restart budget: progress pays for restarts, repetition ends the job.

- A round that advanced the newest checkpoint costs nothing. A job that reports no checkpoint may start from step 0 each
  time; there only a step beyond the best of all earlier rounds is progress. Steps that the agent counts start from 0 in
  every round, so a program that resumes and does not report its step appears to make less progress than it does.
- Losses that no code has caused (a lost pod, an eviction, a preemption) are not counted.
- After a GPU ran out of memory, the next round uses the smaller micro-batch that the worker suggests. That is not
  counted, since each is at most half of the last one; without a smaller one, the job ends.
- A container that could not be started is not a restart: it is retried with a growing delay, independent of budget and
  policy, and ends the job after several times in a row (`Reason.start_attempts`).
- Everything else without progress is counted, delays the next round and may end the job.
"""

from msgspec import Struct

from torchyard.api.exit_codes import SHELL_CODES
from torchyard.api.reasons import Reason
from torchyard.api.spec_reliability import Restart
from torchyard.api.status import Attempt, Restarts, TrainingJobStatus
from torchyard.reconcile.failures import Outcome
from torchyard.reconcile.observed import start_failures

# Delay before a container that could not be started is retried; it doubles each time.
START_SECONDS, LONGEST_START_SECONDS = 5.0, 120.0


class RestartDecision(Struct, frozen=True, kw_only=True):
    """The cost of one round. `final_reason`: why the job ends; None: another round follows after `delay` seconds."""

    restarts: Restarts
    counted: bool
    steps_gained: int
    delay: float = 0.0
    final_reason: Reason | None = None
    micro_batch: int | None = None  # of the next rounds, if this failure requires a smaller one


def decide_restart(status: TrainingJobStatus, policy: Restart, cause: Outcome, end_step: int) -> RestartDecision:
    """Decide what follows from the end of the newest round.

    While the round is open, its attempt is the last one of the list.

    Args:
        status: before the decision; `checkpoint` is the newest known. A job with no attempt yet failed before round 1.
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
        total=before.total,  # counted when the next round opens
        counted=before.counted + counted,
        no_progress=no_progress,
        best_step=max(best, end_step),
    )
    return RestartDecision(
        restarts=after,
        counted=counted,
        steps_gained=max(0, gained),
        delay=_start_delay(earlier) if cause.start_attempts else _delay(policy, no_progress) if counted else 0.0,
        final_reason=_final_reason(policy, cause, after, earlier, end_step, counted=counted),
        micro_batch=smaller,
    )


def _smaller_micro_batch(cause: Outcome, current: int | None) -> int | None:
    """Return the next micro-batch: half of the current one or less, so that the number of retries is bounded."""
    tried = cause.next_micro_batch or 0
    return tried if tried > 0 and (current is None or tried <= current // 2) else None


def _gained(status: TrainingJobStatus, attempt: Attempt, best: int, end_step: int) -> int:
    if status.checkpoint is not None:
        return status.checkpoint.step - attempt.start_step
    return end_step - best


def _final_reason(
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
        return Reason.MAX_RESTARTS_EXCEEDED  # progress pays for restarts only where restarts are allowed
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
    """Return whether user code raised the same exception at the same step before; signals and outages do not count."""
    # Two equal exit codes need not be the same error, but those of a shell for a missing command are.
    known = cause.cause.exception and (not cause.exit_code_only or cause.cause.exit_code in SHELL_CODES)
    if not cause.reason.repeatable or not known or cause.secondary:
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
    initial, most = policy.backoff.initial, policy.backoff.max
    return float(min(most, initial * 2.0 ** min(failures - 1, 32)))
