"""The conditions: all of them on the first visit; a transition time moves only with the status it belongs to.

`Ready`, `Reconciling` and `Stalled` follow the rules of kstatus, by which `helm --wait`, Flux and others judge any
resource: at most one of `Reconciling` and `Stalled` is true; a job that failed is stalled for good; one that trains,
that has succeeded, or that is suspended as it was asked to be is ready.
"""

from typing import Literal

from msgspec.structs import replace

from torchyard.api.status import TERMINAL_STATES, Condition, TrainingJobStatus
from torchyard.api.times import rfc3339
from torchyard.engine.wording import say

MAX_MESSAGE = 1024
OWN_WORDS = frozenset(
    {"Admitted", "Ready", "Reconciling", "Progressing", "Failed", "Stalled"}
)  # the message of the status
EXPORTS = "export/"  # how a trainer's report names what it exported
# What no waiting will mend: somebody has to do something.
STALLING = frozenset(
    {
        "AdmissionDenied",
        "Forbidden",
        "InvalidSpec",
        "LimitRangeExceeded",
        "MissingPriorityClass",
        "MissingRuntimeClass",
        "MissingServiceAccount",
        "NameConflict",
        "PodSecurityViolation",
        "QuotaNeedsLimits",
        "UnreadableStatus",
    }
)


# What keeps pods from being created at all.
NOT_ADMITTED = STALLING | {
    "NamespaceTerminating",
    "NotImplemented",
    "PodInvalid",
    "PredecessorStopping",
    "QuotaExceeded",
    "WebhookUnavailable",
}


def with_conditions(status: TrainingJobStatus, now: float, *, generation: int) -> TrainingJobStatus:
    """The status with every condition derived from the rest of it."""
    earlier = _by_type(status)
    return replace(
        status,
        conditions=[
            _condition(status, earlier.get(kind), now, generation, kind, holds=holds, reason=reason)
            for kind, (holds, reason) in _facts(status).items()
        ],
    )


def stalled(
    status: TrainingJobStatus, now: float, *, generation: int, evidence: str, reason: str = "ReconcileFailed"
) -> TrainingJobStatus:
    """The status with `Stalled`: this job cannot be looked after; everything else stays as it was last known."""
    if status.state == "":
        status = replace(status, state="Pending", reason="JobCreated", message=say("JobCreated"))
    complete = status if status.conditions else with_conditions(status, now, generation=generation)
    before = _by_type(complete)
    failed = _condition(
        complete, before.get("Stalled"), now, generation, "Stalled", holds=True, reason=reason, evidence=evidence
    )
    idle = _condition(
        complete, before.get("Reconciling"), now, generation, "Reconciling", holds=False, reason="NotReconciling"
    )
    changed = {"Stalled": failed, "Reconciling": idle}
    conditions = [changed.get(each.type, each) for each in complete.conditions]
    observed = max(complete.observed_generation, generation)
    return replace(complete, observed_generation=observed, conditions=conditions)


def _facts(status: TrainingJobStatus) -> dict[str, tuple[bool, str]]:
    state, over = status.state, status.state in TERMINAL_STATES
    idle = over or state in {"Suspended", "Terminating"}
    ready = status.nodes.desired > 0 and status.nodes.ready >= status.nodes.desired and not idle
    held = "Suspended" if state in {"Suspending", "Suspended"} else status.reason
    admitted = held != "Suspended" and held not in NOT_ADMITTED
    stalls = state == "Failed" or (not idle and status.reason in STALLING)
    serves = state in {"Running", "Suspended", "Succeeded"}
    changes = not (serves or stalls)
    return {
        "Ready": (serves and not stalls, status.reason or "Starting"),
        "Reconciling": (changes, (status.reason or "Starting") if changes else "NotReconciling"),
        "Admitted": (admitted, "Admitted" if admitted else held),
        "PodsReady": (ready, "PodsReady" if ready else "PodsNotReady"),
        "Running": (state == "Running", (status.reason or "Training") if state == "Running" else "NotTraining"),
        "Progressing": (not idle, status.reason or "Starting"),
        "Recovering": (state == "Recovering", "Recovering" if state == "Recovering" else "Healthy"),
        "CheckpointReady": (
            status.checkpoint is not None,
            "CheckpointSaved" if status.checkpoint is not None else "NoCheckpointYet",
        ),
        "ExportVerified": _export(status),
        "Stalled": (stalls, status.reason if stalls else "NotStalled"),
        "Complete": (state == "Succeeded", "Completed" if state == "Succeeded" else "NotFinished"),
        "Failed": (state == "Failed", status.reason if state == "Failed" and status.reason else "NotFailed"),
    }


def _export(status: TrainingJobStatus) -> tuple[bool, str]:
    """What the comparison of the exported formats with the model found."""
    verdicts = [artifact.verified for artifact in status.artifacts if artifact.name.startswith(EXPORTS)]
    if not verdicts:
        return False, "NoExport"
    if False in verdicts:
        return False, "ExportRefused"
    return (True, "ExportVerified") if all(verdicts) else (False, "ExportNotVerified")


def _by_type(status: TrainingJobStatus) -> dict[str, Condition]:
    return {each.type: each for each in reversed(status.conditions)}


def _condition(
    status: TrainingJobStatus,
    before: Condition | None,
    now: float,
    generation: int,
    kind: str,
    *,
    holds: bool,
    reason: str,
    evidence: str = "",
) -> Condition:
    value: Literal["True", "False"] = "True" if holds else "False"
    own_words = reason == status.reason and status.message and kind in OWN_WORDS
    message = (status.message if own_words else say(reason, evidence))[:MAX_MESSAGE]
    kept = before is not None and before.status == value and bool(before.last_transition_time)
    if before is not None and kept and (before.reason, before.message) == (reason, message):
        # The same object says at once, to whoever compares statuses, that nothing changed.
        return before if before.observed_generation == generation else replace(before, observed_generation=generation)
    return Condition(
        type=kind,
        status=value,
        reason=reason,
        message=message,
        last_transition_time=before.last_transition_time if before is not None and kept else rfc3339(now),
        observed_generation=generation,
    )
