"""Events about pods. The API server has no index of them: for each list it reads all events of the namespace."""

from collections.abc import AsyncIterator

import msgspec

from torchyard.kubernetes.client.api import REQUEST_SECONDS, Api
from torchyard.kubernetes.client.pages import pages
from torchyard.kubernetes.objects import Listed, Read

SHARE = 20  # of the time, a reader spends at most one part on reading


class Reference(Read, frozen=True, gc=False):
    """What an event is about."""

    uid: str = ""


class Series(Read, frozen=True, kw_only=True, gc=False):
    """How an event of the newer API was repeated."""

    last_observed_time: str | None = None


class PodEvent(Read, frozen=True, kw_only=True, gc=False):
    """One event about a pod."""

    involved_object: Reference = Reference()
    reason: str = ""
    message: str = ""
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None
    series: Series | None = None
    count: int | None = None

    @property
    def time(self) -> str:
        """When it was last seen, in whole seconds, to be compared as text."""
        last = self.series.last_observed_time if self.series is not None else None
        return (last or self.last_timestamp or self.event_time or self.first_timestamp or "")[:19]


_DECODER = msgspec.json.Decoder(Listed[PodEvent])


async def read_pod_events(api: Api, namespace: str, selector: str) -> AsyncIterator[PodEvent]:
    """Yield the events of a namespace, page by page.

    Args:
        api: the server.
        namespace: of the pods.
        selector: of fields.

    Raises:
        Unavailable, Rejected, NotFound, Gone, msgspec.MsgspecError: they cannot be read.
    """
    path, params = f"/api/v1/namespaces/{namespace}/events", {"fieldSelector": selector}
    async for page in pages(api, path, _DECODER.decode, params, timeout=REQUEST_SECONDS):
        for event in page.items or ():
            yield event
