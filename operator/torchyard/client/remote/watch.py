"""One job of a cluster, state by state.

A watch misses nothing, not even the last state of a job that its TTL deletes at once.
"""

import asyncio
from collections.abc import AsyncIterator

import msgspec

from torchyard.api.resource import TrainingJob
from torchyard.client.backend import Away
from torchyard.client.remote import jobs
from torchyard.client.remote.session import Remote
from torchyard.kubernetes.client.errors import Gone
from torchyard.reconcile.ports import Unavailable

AGAIN_SECONDS = 1.0
WATCH = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": "300"}


async def states(remote: Remote, name: str, uid: str = "") -> AsyncIterator[TrainingJob | Away | None]:
    """Yield a job each time that it changes, `Away` while the API server does not answer, and None once it is gone.

    A job that is deleted is yielded once more, as it was at its end. Another job of its name is not it.

    Args:
        remote: the cluster.
        name: of the job.
        uid: of the job; by default that of the first one that is seen.

    Raises:
        NotFound: there is no such job.
        Unavailable: the API server does not answer, and never has.
    """
    watch = _Watch(remote, name, uid)
    while not watch.gone:
        try:
            async for job in watch.news():
                yield job
        except Unavailable as error:
            if not watch.uid:
                raise
            yield Away(str(error))
            await asyncio.sleep(AGAIN_SECONDS)
        except Gone:
            watch.position = ""
    yield None


class _Watch:
    """The state of the watch of one job: `position` is a version of the whole collection, empty before a list."""

    def __init__(self, remote: Remote, name: str, uid: str) -> None:
        self.uid, self.position, self.gone = uid, "", False
        self._remote, self._name = remote, name
        self._path = jobs.job_path(remote, name).rpartition("/")[0]
        self._only = {"fieldSelector": f"metadata.name={name}"}

    async def news(self) -> AsyncIterator[TrainingJob]:
        """Yield the job after a list, if one is needed, and at each event until the server ends the watch."""
        if not self.position:
            seen = await self._listed()
            if seen is None:
                self.gone = True
                return
            yield seen
        params = {**self._only, **WATCH, "resourceVersion": self.position}
        async for line in self._remote.api.stream(self._path, params):
            event = msgspec.json.decode(line)
            if event["type"] == "ERROR":  # mostly 410: what came after this version is not known any more
                self.position = ""
                return
            metadata = event["object"]["metadata"]
            self.position = metadata["resourceVersion"]
            if event["type"] == "BOOKMARK" or metadata["uid"] != self.uid:
                continue
            yield jobs.typed(event["object"])
            if event["type"] == "DELETED":
                self.gone = True
                return

    async def _listed(self) -> TrainingJob | None:
        """Return the job as it is now; None: it is gone.

        Raises:
            NotFound: it has never been seen.
        """
        listed = msgspec.json.decode(await self._remote.api.request("GET", self._path, params=self._only))
        documents = listed.get("items") or []
        if not documents and not self.uid:
            documents = [await jobs.get(self._remote, self._name)]
        found = jobs.typed(documents[0]) if documents else None
        self.uid = self.uid or (found.metadata.uid if found is not None else "")
        self.position = listed["metadata"]["resourceVersion"]
        return found if found is not None and found.metadata.uid == self.uid else None
