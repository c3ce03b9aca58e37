"""Objects that cannot be run say so on themselves (`Stalled`), and affect no other job."""

import json
import logging
import time
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from torchyard.api.codec import status_document
from torchyard.api.status import TrainingJobStatus
from torchyard.api.validation.parse import InvalidJob
from torchyard.api.values import rfc3339
from torchyard.kubernetes.cache.jobs import job_path, replace_status
from torchyard.kubernetes.client.api import Api
from torchyard.kubernetes.client.errors import Gone, NotFound, Rejected
from torchyard.reconcile.loop.workqueue import WorkQueue
from torchyard.reconcile.ports import Conflict, Key, Unavailable
from torchyard.reconcile.status.conditions import stalled

Document = dict[str, Any]
_log = logging.getLogger(__name__)


class InvalidJobs:
    """Writes on every invalid object what is wrong with it.

    Args:
        api: for the writes.
        clock: unix seconds.
    """

    def __init__(self, api: Api, *, clock: Callable[[], float] = time.time) -> None:
        self._api, self._clock = api, clock
        self._jobs: dict[Key, InvalidJob] = {}
        self._queue: WorkQueue[Key] = WorkQueue()

    def see(self, job: InvalidJob) -> None:
        """An invalid object was seen; it is written to at once if this process leads."""
        self._jobs[job.key] = job
        self._queue.add(job.key)

    def forget(self, key: Key) -> None:
        """It is gone, or valid by now."""
        self._jobs.pop(key, None)

    async def run(self) -> None:
        """Write until cancelled."""
        for key in self._jobs:
            self._queue.add(key)
        while True:
            key = await self._queue.get()
            try:
                await self._say(key)
            finally:
                self._queue.done(key)

    async def _say(self, key: Key) -> None:
        job = self._jobs.get(key)
        if job is None or job.metadata.deletion_timestamp is not None:
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
            after = _told(there if isinstance(there, dict) else {}, status)
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


def _told(there: Document, status: TrainingJobStatus) -> Document:
    """The status as it is there, saying that the job is stalled.

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
