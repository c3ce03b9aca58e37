"""Pods that the watch no longer reports as a job's, although they may run: their label or their owner was removed.

A watch reports such a pod like one that was deleted by force. Its containers continue to run, hold their
GPUs and write checkpoints: no other pod may take its place before it is gone, and only the operator deletes it. A pod
whose job is deleted is left to those who orphaned it.
"""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from torchyard.kubernetes.cache.jobs import job_path
from torchyard.kubernetes.cache.pod_record import PodRecord
from torchyard.kubernetes.client.api import METADATA_OF_ONE, Api
from torchyard.kubernetes.client.errors import Conflict, Gone, NotFound, Rejected
from torchyard.kubernetes.manifests import names
from torchyard.kubernetes.objects import KubePod
from torchyard.reconcile.ports import Unavailable

LOOK_SECONDS = 2.0
AT_ONCE = 16  # after a watch that stalled for long many may be gone
UNLABELLED = f"its label {names.JOB_UID} was removed, the pod was deleted"
DISOWNED = "its owner reference was removed, the pod was deleted"

_log = logging.getLogger(__name__)


class Orphans:
    """Reads pods that the watch no longer reports, and requests the deletion of those that exist.

    Args:
        api: the server.
        there: called once with a pod that was deleted, and why.
        over: called with a pod that is certainly gone, and why it was deleted; empty: it no longer existed.
    """

    def __init__(
        self, api: Api, *, there: Callable[[PodRecord, str], None], over: Callable[[PodRecord, str], None]
    ) -> None:
        self._api, self._there, self._over = api, there, over
        self._pod = msgspec.json.Decoder(KubePod)
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, record: PodRecord) -> None:
        """Find out whether this pod is gone; returns at once."""
        task = asyncio.create_task(self._follow(record))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Ask no more."""
        for task in self._tasks:
            task.cancel()

    async def _follow(self, record: PodRecord) -> None:
        why, trouble = "", ""
        while True:
            try:
                async with self._turn:
                    found = await self._sent_away(record)
                if not found:
                    break
                if not why:
                    why = found
                    self._there(record, why)
            except (Unavailable, Rejected, Gone, Conflict) as error:
                if not trouble:
                    trouble = str(error)  # another process may lead, which deletes it
                    _log.warning("%s/%s will be read again: %s", record.namespace, record.pod.name, trouble)
            await asyncio.sleep(LOOK_SECONDS)
        self._over(record, why)

    async def _sent_away(self, record: PodRecord) -> str:
        """Request the deletion of a pod if it and its job exist; return why, or "" if there is nothing to delete."""
        path = f"/api/v1/namespaces/{record.namespace}/pods/{record.pod.name}"
        try:
            meta = self._pod.decode(await self._api.request("GET", path)).metadata
            if meta.uid != record.uid:
                return ""
            owner = meta.controller
            owned = owner is not None and owner.is_job(name=record.job_name, uid=record.job_uid)
            if not owned and not await self._job_stays(record):
                return ""
            why = UNLABELLED if owned else DISOWNED
            if meta.deletion_timestamp is None:
                body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": record.uid}}
                await self._api.request("DELETE", path, body=body)
                _log.warning("%s/%s: %s", record.namespace, record.pod.name, why)
        except NotFound:
            return ""
        return why

    async def _job_stays(self, record: PodRecord) -> bool:
        """Return whether the job of a pod exists and is not being deleted, which may orphan its pods.

        Raises:
            NotFound: there is no job of that name.
        """
        path = job_path((record.namespace, record.job_name))
        job = self._pod.decode(await self._api.request("GET", path, accept=METADATA_OF_ONE)).metadata
        return job.uid == record.job_uid and job.deletion_timestamp is None
