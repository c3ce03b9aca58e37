"""Execute a plan, remember what the cluster rejected of it, and log what was decided.

The status is written first, then commands, deletions and creations run in parallel, then events, then the job itself.
One log line for each decision records the state of the job, its reason and the actions: a reader finds every restart,
release and deletion of an operator that runs hundreds of jobs. Figures that change at every sync are not decisions.
Evidence is left out: it quotes programs, and what they print may be secret.
"""

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from torchyard.api.reasons import Reason
from torchyard.api.resource import TrainingJob
from torchyard.api.status import State, TrainingJobStatus
from torchyard.api.values import Time
from torchyard.reconcile.actions import (
    Action,
    CommandAgent,
    CreatePod,
    DeleteJob,
    DeletePod,
    EmitEvent,
    Plan,
    WriteStatus,
)
from torchyard.reconcile.observed import Refusal
from torchyard.reconcile.ports import Agents, Cluster, Refused, StatusRefused
from torchyard.schedulers.protocol import Change, CreateObject, DeleteObject, PatchObject

MAX_IN_FLIGHT = 50


WAITING_SECONDS = 30.0
LOOK_SECONDS = 5.0  # whether pods of other jobs are still queued


class StatusWriter:
    """Writes the statuses of all jobs.

    Args:
        cluster: receives the writes.
        clock: unix seconds.
        written: called with the job as it was, and the status that was written.
    """

    def __init__(
        self,
        cluster: Cluster,
        clock: Callable[[], float],
        written: Callable[[TrainingJob, TrainingJobStatus], None] = lambda _job, _status: None,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._observe = written
        self._began = clock()
        self._written: dict[str, float] = {}  # job uid -> when

    async def write(self, job: TrainingJob, action: WriteStatus, interval: float) -> float | None:
        """Write or postpone a status; return the seconds until the next reconcile, None: when something changes.

        Args:
            job: as it was read.
            action: the status the plan wants.
            interval: `spec.metrics.interval` in seconds.
        """
        if action.status == job.status:
            return None
        now = self._clock()
        if self._cluster.busy and now < action.yields_until:
            return min(LOOK_SECONDS, action.yields_until - now)
        age = now - self._written.get(job.metadata.uid, self._began)
        pause = interval if action.status.state == State.RUNNING else max(interval, WAITING_SECONDS)
        # A clock that was set back must not block writes.
        if not action.urgent and 0 <= age < pause:
            return pause - age
        status = replace(action.status, last_update_time=Time.of(now))
        try:
            await self._cluster.write_status(job, status)
        except Refused as error:
            raise StatusRefused(error.reason, error.message, retry_after=error.retry_after) from error
        self._written[job.metadata.uid] = self._clock()
        self._observe(job, status)
        return 0.0 if action.urgent else None  # a plan makes at most one transition; the next one may be due already

    def forget(self, job_uid: str) -> None:
        """Forget a job that is gone."""
        self._written.pop(job_uid, None)


class Executor:
    """Executes plans; a failed write ends the plan, and the next reconcile continues.

    Args:
        cluster: receives the writes.
        agents: receives the commands.
        writer: of statuses.
        in_flight: maximum number of concurrent writes over all jobs.
    """

    def __init__(
        self, cluster: Cluster, agents: Agents, writer: StatusWriter, *, in_flight: int = MAX_IN_FLIGHT
    ) -> None:
        self._cluster, self._agents, self._writer = cluster, agents, writer
        self._budget = asyncio.Semaphore(in_flight)

    async def carry_out(self, job: TrainingJob, plan: Plan) -> float | None:
        """Execute a plan; return the seconds until the next reconcile, None: when something changes.

        Raises:
            Conflict, NameTaken, Refused, Unavailable: a write failed; the other pods of the gang are still tried.
        """
        due = [plan.requeue_after]
        of = plan.actions
        if not plan.pods_first:
            due += await self._statuses(job, of)
            if self._is_gone(job):
                return None  # the write found that the job is gone; pods created now would only be deleted again
        for command in (each for each in of if isinstance(each, CommandAgent)):
            self._agents.command(command)
        try:
            failed = await self._all(
                self._write(job, each)
                for each in of
                if isinstance(each, DeletePod | CreatePod | CreateObject | PatchObject | DeleteObject)
            )
        finally:
            # The transition is in the status and will not be planned again, even if pods could not be created.
            for event in (each for each in of if isinstance(each, EmitEvent)):
                await self._cluster.emit_event(job, event)
        if plan.pods_first:
            due += await self._statuses(job, of)
        if failed is not None:
            raise failed
        if any(isinstance(each, DeleteJob) for each in of):
            await self._cluster.delete_job(job)
        return min((each for each in due if each is not None), default=None)

    async def _write(self, job: TrainingJob, action: DeletePod | CreatePod | Change) -> None:
        if isinstance(action, DeletePod):
            await self._cluster.delete_pod(job, action)
        elif isinstance(action, CreatePod):
            await self._cluster.create_pod(job, action)
        else:
            await self._cluster.change_object(job, action)

    def _is_gone(self, job: TrainingJob) -> bool:
        now = self._cluster.job(job.key)
        return now is None or now.metadata.uid != job.metadata.uid

    async def _statuses(self, job: TrainingJob, actions: Iterable[Action]) -> list[float | None]:
        """Write or postpone statuses; return the seconds until the next reconcile."""
        due = []
        for action in (each for each in actions if isinstance(each, WriteStatus)):
            async with self._budget:
                due.append(await self._writer.write(job, action, job.spec.metrics.interval))
        return due

    async def _all(self, writes: Iterable[Coroutine[Any, Any, None]]) -> BaseException | None:
        """Run all writes concurrently; return the most actionable error, or None."""
        results = await asyncio.gather(*(self._within_budget(write) for write in writes), return_exceptions=True)
        failed = [result for result in results if isinstance(result, BaseException)]
        return min(failed, key=lambda each: not isinstance(each, Refused), default=None)

    async def _within_budget(self, write: Coroutine[Any, Any, None]) -> None:
        async with self._budget:
            await write


MAX_NAMES = 8
_log = logging.getLogger("torchyard.decisions")


class Decision(Struct, frozen=True, kw_only=True):
    """What was decided about a job. `actions`: one phrase each."""

    job: str
    uid: str
    round: int
    state: State
    reason: Reason
    changed: bool  # state, reason or round are not what they were
    actions: tuple[str, ...] = ()


FIRST_SECONDS = 1.0
MOST_SECONDS = 60.0


class Refusals:
    """The newest rejection of each job, by uid.

    Args:
        clock: unix seconds.
        jitter: drawn for every refusal, a factor in [0, 1); the delay grows by up to half of itself.
    """

    def __init__(self, clock: Callable[[], float], jitter: Callable[[], float] = random.random) -> None:
        self._clock, self._jitter = clock, jitter
        self._known: dict[str, tuple[int, int, Refusal]] = {}  # generation, times in a row, the newest

    def of(self, job: TrainingJob) -> Refusal | None:
        """Return the rejection that concerns the current generation of this job."""
        generation, _, refusal = self._known.get(job.metadata.uid, (0, 0, None))
        return refusal if generation == job.metadata.generation else None

    def note(self, job: TrainingJob, error: Refused) -> float:
        """Store a rejection; return the seconds until the next reconcile, 0 if the status has to change."""
        now, before = self._clock(), self.of(job)
        same = before is not None and before.reason == error.reason
        times = self._known[job.metadata.uid][1] + 1 if same else 1
        delay = error.retry_after or min(MOST_SECONDS, FIRST_SECONDS * 2.0 ** min(times - 1, 16))
        delay *= 1.0 + self._jitter() / 2
        refusal = Refusal(
            reason=error.reason,
            message=error.message,
            permanent=error.permanent,
            since=before.since if before is not None and same else now,
            until=now + delay,
        )
        self._known[job.metadata.uid] = (job.metadata.generation, times, refusal)
        return delay if before is not None and same and before.message == error.message else 0.0

    def forget(self, job_uid: str) -> None:
        """Forget a job that is gone or whose write succeeded."""
        self._known.pop(job_uid, None)


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
        state=after.state,
        reason=after.reason,
        changed=changed,
        actions=actions,
    )


def log(made: Decision, *, failed: str = "") -> None:
    """Write the line; in JSON the fields of the decision are keys beside the message.

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
    yield from (_phrase(each) for each in plan.actions if isinstance(each, CreateObject | PatchObject | DeleteObject))
    yield from (f"event {each.reason}" for each in plan.actions if isinstance(each, EmitEvent))
    if any(isinstance(each, DeleteJob) for each in plan.actions):
        yield "deleted the job, its ttlAfterFinished has passed"


def _phrase(change: Change) -> str:
    what = f"{change.kind.kind} {change.name}"
    if isinstance(change, CreateObject):
        return f"created {what}"
    return f"{'deleted' if isinstance(change, DeleteObject) else 'changed'} {what}, {change.why}"


def _names(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ("pods " if len(names) > 1 else "pod ") + ", ".join(names[:MAX_NAMES]) + more
