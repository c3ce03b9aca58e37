"""Limits of a status: 64 KiB, ten attempts. Redundant fields are dropped first, fields that the planner reads never."""

import msgspec
from msgspec.structs import replace

from torchyard.api.status import MAX_ATTEMPTS, MAX_STATUS_BYTES, Attempt, TrainingJobStatus

SHORT = 120
COLUMNS_BYTES = 512  # the columns of `kubectl get` are added when the status is written


def bounded(status: TrainingJobStatus) -> TrainingJobStatus:
    """Return the status within its limits: old attempts lose their log lines, then their messages, then metrics."""
    if len(status.attempts) > MAX_ATTEMPTS:
        status = replace(status, attempts=status.attempts[-MAX_ATTEMPTS:])
    place = 0
    while place < len(status.attempts) and _too_big(status):
        status = _with_attempt(status, place, _without_lines(status.attempts[place]))
        place += 1
    if _too_big(status):
        status = replace(status, attempts=[_short(each) for each in status.attempts], artifacts=status.artifacts[:10])
    return replace(status, metrics={}, devices={}) if _too_big(status) else status


def _too_big(status: TrainingJobStatus) -> bool:
    return len(msgspec.json.encode(status)) > MAX_STATUS_BYTES - COLUMNS_BYTES


def _with_attempt(status: TrainingJobStatus, place: int, attempt: Attempt) -> TrainingJobStatus:
    return replace(status, attempts=[*status.attempts[:place], attempt, *status.attempts[place + 1 :]])


def _without_lines(attempt: Attempt) -> Attempt:
    return replace(attempt, cause=replace(attempt.cause, lines=[])) if attempt.cause is not None else attempt


def _short(attempt: Attempt) -> Attempt:
    if attempt.cause is None:
        return attempt
    return replace(attempt, cause=replace(attempt.cause, lines=[], exception=attempt.cause.exception[:SHORT]))
