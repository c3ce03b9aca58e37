"""Jobs that cannot be run: each gets the condition `Stalled` with what is wrong, and affects no other job."""

import json
import logging
import time
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from torchyard.api.resource import status_document
from torchyard.api.status import TrainingJobStatus
from torchyard.api.validation.parse import InvalidJob
from torchyard.api.values import rfc3339
from torchyard.kubernetes.cache.jobs import Jobs, job_path, replace_status
from torchyard.kubernetes.client.api import Api
from torchyard.kubernetes.client.errors import Gone, NotFound, Rejected
from torchyard.reconcile.loop.controller import WorkQueue
from torchyard.reconcile.plan import stalled
from torchyard.reconcile.ports import Conflict, Key, Unavailable

_log = logging.getLogger(__name__)

Document = dict[str, Any]


class InvalidJobs:
    """Writes into the status of every invalid object what is wrong with it.

    Args:
        api: for the writes.
        jobs: all objects.
        clock: unix seconds.
    """

    def __init__(self, api: Api, jobs: Jobs, *, clock: Callable[[], float] = time.time) -> None:
        self._api, self._jobs, self._clock = api, jobs, clock
        self._queue: WorkQueue[Key] = WorkQueue()

    async def run(self) -> None:
        """Write until cancelled."""
        with self._jobs.subscribed(self._queue.add_after, invalid=True):
            for key in self._jobs.keys():  # noqa: SIM118 -- it is no mapping
                if isinstance(self._jobs.find(key), InvalidJob):
                    self._queue.add(key)
            while True:
                key = await self._queue.get()
                try:
                    await self._report_invalid(key)
                finally:
                    self._queue.done(key)

    async def _report_invalid(self, key: Key) -> None:
        job = self._jobs.find(key)
        if not isinstance(job, InvalidJob) or job.is_delegated or job.metadata.deletion_timestamp is not None:
            return
        now = self._clock()
        status = stalled(job.status, now, generation=job.metadata.generation, evidence=job.problem, reason=job.reason)
        if job.status.state == "":
            said = next(each.message for each in status.conditions if each.type == "Stalled")
            status = replace(status, reason=job.reason, message=said)
        if status == job.status:
            return
        try:
            there = json.loads(await self._api.request("GET", job_path(key))).get("status")
            after = _stalled_status(there if isinstance(there, dict) else {}, status)
            if after == there:
                return
            await replace_status(self._api, job.metadata, {**after, "lastUpdateTime": rfc3339(now)})
        except (NotFound, Gone, Conflict):
            return  # there will be news of it
        except Unavailable as error:
            self._queue.fail(key, at_least=error.retry_after)
        except Rejected as error:
            _log.warning("%s/%s is invalid (%s), and its status cannot be written: %s", *key, job.problem, error)
            self._queue.fail(key)
        else:
            self._queue.succeed(key)
            _log.warning("%s/%s is invalid: %s", *key, job.problem)


def _stalled_status(there: Document, status: TrainingJobStatus) -> Document:
    """Return the stored status with the condition `Stalled`.

    Its other fields are kept: another version of the operator may be able to read them.
    """
    ours = status_document(status)
    listed = there.get("conditions")
    conditions = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    conditions = conditions or ours["conditions"]
    new = [_since_before(each, conditions) for each in ours["conditions"] if each["type"] in {"Reconciling", "Stalled"}]
    said: Document = {name: ours[name] for name in ("observedGeneration", "reason", "message") if name in ours}
    return {
        **there,
        **said,
        "state": there.get("state") or ours["state"],
        "conditions": [each for each in conditions if each.get("type") not in {"Reconciling", "Stalled"}] + new,
    }


def _since_before(condition: Document, conditions: list[Document]) -> Document:
    old = next((each for each in conditions if each.get("type") == condition["type"]), condition)
    if old.get("status") != condition["status"]:
        return condition
    return {**condition, "lastTransitionTime": old.get("lastTransitionTime", condition["lastTransitionTime"])}
