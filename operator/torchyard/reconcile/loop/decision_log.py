"""One log line for each decision about a job: where the job stands and why, and what was done.

A reader finds every restart, release and deletion of an operator that looks after hundreds of jobs. Figures that change
at every sync are not decisions. Evidence is left out: it quotes programs, and what they print may be secret.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable

from msgspec import Struct

from torchyard.api.resource import TrainingJob
from torchyard.reconcile.actions import CommandAgent, CreatePod, DeleteJob, DeletePod, EmitEvent, Plan, WriteStatus

MAX_NAMES = 8
_log = logging.getLogger("torchyard.decisions")


class Decision(Struct, frozen=True, kw_only=True):
    """What was decided about a job. `actions`: one phrase each."""

    job: str
    uid: str
    round: int
    state: str
    reason: str
    changed: bool  # state, reason or round are not what they were
    actions: tuple[str, ...] = ()


def decision(job: TrainingJob, plan: Plan) -> Decision | None:
    """Return what `plan` decides about `job`; None: nothing but figures."""
    before = job.status
    after = next((each.status for each in plan.actions if isinstance(each, WriteStatus)), before)
    changed = (after.state, after.reason, after.round) != (before.state, before.reason, before.round)
    actions = tuple(_phrases(plan))
    if not changed and not actions:
        return None
    return Decision(
        job="/".join(job.key),
        uid=job.metadata.uid,
        round=after.round,
        state=str(after.state),
        reason=str(after.reason),
        changed=changed,
        actions=actions,
    )


def log(made: Decision, *, failed: str = "") -> None:
    """Write the line; in JSON the fields of the decision stand beside the message.

    A write that failed (`failed`: the error's class) is tried again: that is worth a line only if the job moved on.
    """
    text = f"{made.job}: {made.state}, {made.reason}, round {made.round}"
    text += f": {'; '.join(made.actions)}" if made.actions else ""
    text += f" ({failed}, tried again)" if failed else ""
    fields = {
        "job": made.job,
        "uid": made.uid,
        "round": made.round,
        "state": made.state,
        "reason": made.reason,
        "actions": list(made.actions),
    }
    level = logging.INFO if made.changed or not failed else logging.DEBUG
    _log.log(level, "%s", text, extra=fields | ({"failed": failed} if failed else {}))


def _phrases(plan: Plan) -> Iterable[str]:
    commands: dict[str, int] = defaultdict(int)
    deleted: dict[str, list[str]] = defaultdict(list)
    created = [each.name for each in plan.actions if isinstance(each, CreatePod)]
    for action in plan.actions:
        if isinstance(action, CommandAgent):
            commands[action.verb] += 1
        elif isinstance(action, DeletePod):
            deleted[action.why].append(action.name)
    yield from (f"asked {count} agent{'s' * (count > 1)} to {verb}" for verb, count in commands.items())
    yield from (f"deleted {_names(names)}, {why}" for why, names in deleted.items())
    if created:
        yield f"created {_names(created)}"
    yield from (f"event {each.reason}" for each in plan.actions if isinstance(each, EmitEvent))
    if any(isinstance(each, DeleteJob) for each in plan.actions):
        yield "deleted the job, its ttlAfterFinished is over"


def _names(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ("pods " if len(names) > 1 else "pod ") + ", ".join(names[:MAX_NAMES]) + more
