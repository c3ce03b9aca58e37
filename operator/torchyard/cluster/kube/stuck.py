"""Pods that were placed and whose containers are not even created: what the kubelet says about them in its events.

A missing secret or claim, a volume that does not mount, a network that is not set up are nowhere in a pod's status.
Events are read only for such a pod, one of each job, every 20 s for as long as it lasts.
"""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from torchyard.cluster.kube.client import Api
from torchyard.cluster.kube.errors import Gone, NotFound, Rejected
from torchyard.cluster.kube.facts import Facts
from torchyard.cluster.kube.objects import Listed, Read
from torchyard.cluster.kube.why import waiting
from torchyard.engine.ports import Unavailable

LOOK_SECONDS = 20.0
MOST_EVENTS = "50"

_log = logging.getLogger(__name__)


class Event(Read, frozen=True, kw_only=True, gc=False):
    """One event about a pod."""

    reason: str = ""
    message: str = ""
    last_timestamp: str | None = None
    event_time: str | None = None

    @property
    def time(self) -> str:
        """When it was last seen, to be compared as text."""
        return self.last_timestamp or self.event_time or ""


class Stuck:
    """What is known of pods that do not start.

    Args:
        api: the server.
        pod: the newest facts of a pod that is still stuck, None once it is not.
        changed: called with the facts of a pod of which something new is known.
    """

    def __init__(self, api: Api, *, pod: Callable[[str], Facts | None], changed: Callable[[Facts], None]) -> None:
        self._api, self._pod, self._changed = api, pod, changed
        self._known: dict[str, tuple[str, str]] = {}  # by job uid: what holds for one of its pods holds for the gang
        self._followed: dict[str, asyncio.Task[None]] = {}
        self._page = msgspec.json.Decoder(Listed[Event])

    def why(self, job_uid: str) -> tuple[str, str]:
        """Catalogue code and evidence of why pods of this job do not start; empty: nothing is known."""
        return self._known.get(job_uid, ("", ""))

    def look(self, facts: Facts) -> None:
        """This pod does not start."""
        job = facts.job_uid
        if job not in self._followed:
            self._followed[job] = task = asyncio.create_task(self._follow(facts))
            task.add_done_callback(lambda _task: self._followed.pop(job, None))

    async def close(self) -> None:
        """Look no more."""
        tasks = list(self._followed.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, facts: Facts) -> None:
        now: Facts | None = facts
        while now is not None:
            found = await self._newest(now)
            if found is not None and found != self.why(now.job_uid):
                self._known[now.job_uid] = found
                self._changed(now)
            await asyncio.sleep(LOOK_SECONDS)
            now = self._pod(now.uid)
        self._known.pop(facts.job_uid, None)

    async def _newest(self, facts: Facts) -> tuple[str, str] | None:
        params = {"fieldSelector": f"involvedObject.uid={facts.uid},type=Warning", "limit": MOST_EVENTS}
        try:
            answer = await self._api.request("GET", f"/api/v1/namespaces/{facts.namespace}/events", params=params)
            events = self._page.decode(answer).items or []
        except (Unavailable, Rejected, NotFound, Gone, msgspec.MsgspecError) as error:
            _log.warning("events of pod %s/%s cannot be read: %s", facts.namespace, facts.pod.name, error)
            return None
        for event in sorted(events, key=lambda each: each.time, reverse=True):
            reason, message = waiting.event(event.reason, event.message)
            if reason:
                return reason, message
        return None
