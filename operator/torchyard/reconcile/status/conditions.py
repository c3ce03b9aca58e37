"""Conditions and warnings of a job.

All conditions are set on the first visit; a transition time changes only with the status of its condition. `Ready`,
`Reconciling` and `Stalled` follow the rules of kstatus, which `helm --wait`, Flux and others apply to any resource: at
most one of `Reconciling` and `Stalled` is true; a failed job stays stalled; a job that trains, has succeeded, or is
suspended as requested is ready.

A warning means that the job continues, but probably not as its author intended.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec.structs import replace

from torchyard.api.formatting import plural
from torchyard.api.reasons import Reason, say
from torchyard.api.status import Condition, State, TrainingJobStatus
from torchyard.api.values import Time
from torchyard.reconcile.observed import RankReport, View

MAX_MESSAGE = 1024
OWN_WORDS = frozenset(
    {"Admitted", "Ready", "Reconciling", "Progressing", "Failed", "Stalled"}
)  # conditions that repeat the message of the status
EXPORTS = "export/"  # prefix of exports in a trainer's report


def with_conditions(status: TrainingJobStatus, now: float, *, generation: int) -> TrainingJobStatus:
    """Return the status with every condition derived from the other fields."""
    earlier = _by_type(status)
    return replace(
        status,
        conditions=[
            _condition(status, earlier.get(kind), now, generation, kind, holds=holds, reason=reason)
            for kind, (holds, reason) in _values(status).items()
        ],
    )


def stalled(
    status: TrainingJobStatus, now: float, *, generation: int, evidence: str, reason: Reason = Reason.RECONCILE_FAILED
) -> TrainingJobStatus:
    """Return the status with `Stalled`: the job cannot be reconciled; all other fields keep their last known values."""
    if not status.state:
        status = replace(status, state=State.PENDING, reason=Reason.JOB_CREATED, message=say(Reason.JOB_CREATED))
    complete = status if status.conditions else with_conditions(status, now, generation=generation)
    before = _by_type(complete)
    failed = _condition(
        complete, before.get("Stalled"), now, generation, "Stalled", holds=True, reason=reason, evidence=evidence
    )
    idle = _condition(
        complete, before.get("Reconciling"), now, generation, "Reconciling", holds=False, reason=Reason.NOT_RECONCILING
    )
    changed = {"Stalled": failed, "Reconciling": idle}
    conditions = [changed.get(each.type, each) for each in complete.conditions]
    observed = max(complete.observed_generation, generation)
    return replace(complete, observed_generation=observed, conditions=conditions)


def _values(status: TrainingJobStatus) -> dict[str, tuple[bool, Reason]]:
    state = status.state
    idle = state.at_rest or state is State.TERMINATING
    ready = status.nodes.desired > 0 and status.nodes.ready >= status.nodes.desired and not idle
    held = Reason.SUSPENDED if state in {State.SUSPENDING, State.SUSPENDED} else status.reason
    admitted = held != Reason.SUSPENDED and status.reason.admits
    failed = state == State.FAILED
    stalls = failed or (not idle and status.reason.stalls)
    changes = not (state.ready or stalls)
    return {
        "Ready": (state.ready and not stalls, status.reason or Reason.STARTING),
        "Reconciling": (changes, (status.reason or Reason.STARTING) if changes else Reason.NOT_RECONCILING),
        "Admitted": (admitted, Reason.ADMITTED if admitted else held),
        "PodsReady": (ready, Reason.PODS_READY if ready else Reason.PODS_NOT_READY),
        "Running": (
            state == State.RUNNING,
            (status.reason or Reason.TRAINING) if state == State.RUNNING else Reason.NOT_TRAINING,
        ),
        "Progressing": (not idle, status.reason or Reason.STARTING),
        "Recovering": (state == State.RECOVERING, Reason.RECOVERING if state == State.RECOVERING else Reason.HEALTHY),
        "CheckpointReady": (
            status.checkpoint is not None,
            Reason.CHECKPOINT_SAVED if status.checkpoint is not None else Reason.NO_CHECKPOINT_YET,
        ),
        "ExportVerified": _export(status),
        "Stalled": (stalls, status.reason if stalls else Reason.NOT_STALLED),
        "Complete": (state == State.SUCCEEDED, Reason.COMPLETED if state == State.SUCCEEDED else Reason.NOT_FINISHED),
        "Failed": (failed, status.reason if failed and status.reason else Reason.NOT_FAILED),
    }


def _export(status: TrainingJobStatus) -> tuple[bool, Reason]:
    """Return whether the exported formats compute what the model computes, and the reason."""
    verdicts = [artifact.verified for artifact in status.artifacts if artifact.name.startswith(EXPORTS)]
    if not verdicts:
        return False, Reason.NO_EXPORT
    if False in verdicts:
        return False, Reason.EXPORT_REFUSED
    return (True, Reason.EXPORT_VERIFIED) if all(verdicts) else (False, Reason.EXPORT_NOT_VERIFIED)


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
    reason: Reason,
    evidence: str = "",
) -> Condition:
    value: Literal["True", "False"] = "True" if holds else "False"
    own_words = reason == status.reason and status.message and kind in OWN_WORDS
    message = (status.message if own_words else say(reason, evidence))[:MAX_MESSAGE]
    kept = before is not None and before.status == value and bool(before.last_transition_time)
    if before is not None and kept and (before.reason, before.message) == (reason, message):
        # Return the same object, so that comparing statuses is cheap.
        return before if before.observed_generation == generation else replace(before, observed_generation=generation)
    return Condition(
        type=kind,
        status=value,
        reason=reason,
        message=message,
        last_transition_time=before.last_transition_time if before is not None and kept else Time.of(now),
        observed_generation=generation,
    )


# A program may make its first steps before it creates the process group, to warm up or to compile.
ALONE_SECONDS = 60.0
MAX_DEVICES = 16
MAX_RANGES = 200

Advisory = tuple[Reason, str]
"""Reason and evidence. The evidence does not change from step to step: each is announced once."""


def advisories(view: View, status: TrainingJobStatus, reports: Sequence[RankReport]) -> tuple[Advisory, ...]:
    """Return what to warn of in the open round."""
    found = (_not_communicating(view, status, reports), _unused_gpus(view, reports))
    return tuple(each for each in found if each is not None)


def devices(reports: Iterable[RankReport]) -> dict[str, str]:
    """Return the ranks of each device, as ranges: `{"cuda:0 NVIDIA H100": "0,8", "cpu": "1-7"}`."""
    ranks: dict[str, list[int]] = {}
    for report in reports:
        if report.device:
            ranks.setdefault(report.device, []).append(report.rank)
    return {device: ranges(found) for device, found in sorted(ranks.items())[:MAX_DEVICES]}


def ranges(numbers: Iterable[int]) -> str:
    """Return whole numbers as ranges, cut where they are too many to be read: `0-7,16,24-31`."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    text = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
    return text if len(text) <= MAX_RANGES else f"{text[:MAX_RANGES].rpartition(',')[0]},..."


def _not_communicating(view: View, status: TrainingJobStatus, reports: Sequence[RankReport]) -> Advisory | None:
    """Return ranks that made steps although none of them created a process group, if they can be inspected."""
    alone = [each for each in reports if each.alone_seconds is not None]
    if len(alone) < 2 or len(alone) < len(reports):
        return None
    over = [_ended_well(view, uid, status.round) for uid in status.rendezvous.members]
    if not all(over) and min(each.alone_seconds or 0.0 for each in alone) < ALONE_SECONDS:
        return None
    return Reason.RANKS_NOT_COMMUNICATING, f"{plural(len(alone), 'rank')} made steps, none created a process group"


def _ended_well(view: View, uid: str, number: int) -> bool:
    agent = view.agents.get(uid)
    ended = agent.exit if agent is not None else None
    return ended is not None and ended.round == number and ended.code == 0


def _unused_gpus(view: View, reports: Sequence[RankReport]) -> Advisory | None:
    asked = view.job.spec.gpus_per_node
    idle = [each.rank for each in reports if each.device == "cpu"]
    if not asked or not idle:
        return None
    who = f"rank {idle[0]} trains" if len(idle) == 1 else f"ranks {ranges(idle)} train"
    return Reason.GPUS_NOT_USED, f"{who} on the CPU, gpusPerNode is {asked}"
