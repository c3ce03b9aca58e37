"""Carry a plan out: status first, then agents, deletions and creations in parallel, events, the job itself.

Where nothing must be persisted before the pods, the status comes after them, whatever became of them.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from torchyard.api.durations import seconds
from torchyard.api.resource import TrainingJob
from torchyard.engine.actions import Action, CommandAgent, CreatePod, DeleteJob, DeletePod, EmitEvent, Plan, WriteStatus
from torchyard.engine.ports import Agents, Cluster, Refused
from torchyard.engine.status_writer import StatusWriter

MAX_IN_FLIGHT = 50


class Executor:
    """Carries out plans; a write that fails ends the plan there, the next look at the job goes on.

    Args:
        cluster: takes the writes.
        agents: takes the commands.
        writer: of statuses.
        in_flight: most writes under way at once, over all jobs.
    """

    def __init__(
        self, cluster: Cluster, agents: Agents, writer: StatusWriter, *, in_flight: int = MAX_IN_FLIGHT
    ) -> None:
        self._cluster, self._agents, self._writer = cluster, agents, writer
        self._budget = asyncio.Semaphore(in_flight)

    async def carry_out(self, job: TrainingJob, plan: Plan) -> float | None:
        """Seconds after which the job must be looked at again, None: on news only.

        Raises:
            Conflict, NameTaken, Refused, Unavailable: a write that failed; pods of one gang are tried all the same.
        """
        due = [plan.requeue_after]
        of = plan.actions
        if not plan.pods_first:
            due += await self._statuses(job, of)
            if self._is_gone(job):
                return None  # found out by that write; pods made now would only be taken down again
        for command in (each for each in of if isinstance(each, CommandAgent)):
            self._agents.command(command)
        try:
            failed = await self._all(
                self._cluster.delete_pod(job, each)
                if isinstance(each, DeletePod)
                else self._cluster.create_pod(job, each)
                for each in of
                if isinstance(each, DeletePod | CreatePod)
            )
        finally:
            # The transition is in the status and comes to no further plan, whatever becomes of the pods.
            for event in (each for each in of if isinstance(each, EmitEvent)):
                await self._cluster.emit_event(job, event)
        if plan.pods_first:
            due += await self._statuses(job, of)
        if failed is not None:
            raise failed
        if any(isinstance(each, DeleteJob) for each in of):
            await self._cluster.delete_job(job)
        return min((each for each in due if each is not None), default=None)

    def _is_gone(self, job: TrainingJob) -> bool:
        now = self._cluster.job(job.key)
        return now is None or now.metadata.uid != job.metadata.uid

    async def _statuses(self, job: TrainingJob, actions: Iterable[Action]) -> list[float | None]:
        """Write them or put them off; seconds after which to look again."""
        due = []
        for action in (each for each in actions if isinstance(each, WriteStatus)):
            async with self._budget:
                due.append(await self._writer.write(job, action, seconds(job.spec.metrics.interval)))
        return due

    async def _all(self, writes: Iterable[Coroutine[Any, Any, None]]) -> BaseException | None:
        """Make all of these; of many troubles the one that a user can do something about."""
        results = await asyncio.gather(*(self._within_budget(write) for write in writes), return_exceptions=True)
        failed = [result for result in results if isinstance(result, BaseException)]
        return min(failed, key=lambda each: not isinstance(each, Refused), default=None)

    async def _within_budget(self, write: Coroutine[Any, Any, None]) -> None:
        async with self._budget:
            await write
