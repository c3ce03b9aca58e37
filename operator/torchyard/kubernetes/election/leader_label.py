"""The Service of the intake follows the leader by a label that the leader sets on its own pod."""

import asyncio
import logging

import msgspec
from msgspec import Struct

from torchyard.kubernetes.client.api import MERGE_PATCH, METADATA_OF_ALL, Api, Fence
from torchyard.kubernetes.client.errors import Gone, NotFound, Rejected
from torchyard.reconcile.ports import Conflict, Unavailable

LABEL = "torchyard.dev/leader"
RETRY_SECONDS = 2.0
_log = logging.getLogger(__name__)


class _Named(Struct, frozen=True):
    name: str = ""


class _Pod(Struct, frozen=True):
    metadata: _Named = _Named()


class _Pods(Struct, frozen=True):
    items: list[_Pod] | None = None


class LeaderLabel:
    """The label on the pods of the operator.

    Args:
        api: not behind a fence: a process that stops removes its label when it no longer leads.
        namespace: of the operator.
        pod: name of the pod this process runs in.
        fence: keeps a process that leads no more from calling agents to itself.
    """

    def __init__(self, api: Api, *, namespace: str, pod: str, fence: Fence) -> None:
        self._api, self._pod = api, pod
        self._leading = api.guarded(budget=None, fence=fence)
        self._folder = f"/api/v1/namespaces/{namespace}/pods"

    async def move_here(self) -> None:
        """Set it here and nowhere else; tries until it is so."""
        told = ""
        while True:
            try:
                await self._set(self._leading, self._pod, "true")
                for other in await self._elsewhere():
                    await self._set(self._leading, other, None)
            except (Unavailable, Conflict, Rejected, Gone, NotFound) as error:
                if told != (told := str(error)):
                    _log.warning("agents cannot find this leader yet: label %s is not set: %s", LABEL, error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def take_off(self) -> None:
        """Remove it from this pod, so that no agent is sent here any more.

        Raises:
            Unavailable, Conflict, Rejected, NotFound: it is still there.
        """
        await self._set(self._api, self._pod, None)

    async def _elsewhere(self) -> list[str]:
        """Pods that lead no more and could not take it off themselves: killed, or cut off."""
        params = {"labelSelector": f"{LABEL}=true"}
        answer = await self._api.request("GET", self._folder, params=params, accept=METADATA_OF_ALL)
        found = msgspec.json.decode(answer, type=_Pods)
        return [pod.metadata.name for pod in found.items or () if pod.metadata.name != self._pod]

    async def _set(self, api: Api, pod: str, value: str | None) -> None:
        body = {"metadata": {"labels": {LABEL: value}}}
        try:
            await api.request("PATCH", f"{self._folder}/{pod}", body=body, content_type=MERGE_PATCH)
        except NotFound:
            if value is not None:
                raise
