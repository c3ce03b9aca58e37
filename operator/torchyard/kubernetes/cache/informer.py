"""The objects of one kind, as the API server sends them: list, then watch, for ever.

What `read` returns for an object is kept by uid. An object never goes back in time: its resourceVersion decides,
so that repeated, late and reordered events, and answers to our own writes, can come in any order. What vanished without
a watch is found by the next list.
"""

import asyncio
import contextlib
import logging
import random
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Generic, Protocol, TypeVar

import msgspec

from torchyard.kubernetes.client.api import JSON, METADATA_OF_ALL, Api, version
from torchyard.kubernetes.client.errors import Gone, NotFound, Rejected, refusal
from torchyard.kubernetes.client.pages import pages
from torchyard.kubernetes.objects import Listed, ListMeta, Seen, StatusError, WatchEvent
from torchyard.reconcile.ports import Unavailable

LIST_SECONDS = 60.0
WATCH_SECONDS = 290
WATCH_JITTER_SECONDS = 60
BASE_SECONDS = 0.2
MAX_SECONDS = 30.0
STEADY_SECONDS = 1.0
UNDER_WAY_SECONDS = 15.0  # how late an event may be that a list already included: a busy process handles it late
MAX_BURIED = 16384

_log = logging.getLogger(__name__)


class Stored(Protocol):
    """What is kept of an object."""

    @property
    def uid(self) -> str:
        """Of the object."""
        ...

    @property
    def version(self) -> int:
        """Its resourceVersion as a number."""
        ...

    @property
    def whole(self) -> bool:
        """Whether it was read from a whole object: of one version, it has more fields than the answer to a write."""
        ...


T = TypeVar("T")
S = TypeVar("S", bound=Stored)


class _Page(msgspec.Struct, Generic[S], frozen=True):
    """What is kept of one page of a list."""

    kept: list[S]
    metadata: ListMeta


class Informer(Generic[T, S]):
    """A cache that follows one collection.

    Args:
        api: the server.
        path: of the collection, `/api/v1/pods` or of one namespace.
        of: what to decode an object as.
        read: what to keep of it; None: nothing, it is not ours.
        changed: called with the former and the new entry, None where it does not exist.
        selector: of labels.
        jitter: a factor in [0, 1), drawn for every delay.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        *,
        of: type[T],
        read: Callable[[T], S | None],
        changed: Callable[[S | None, S | None], None],
        selector: str = "",
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.path, self.selector = path, selector
        self.objects: dict[str, S] = {}
        self.version = 0
        """Everything that happened up to this resourceVersion is known."""
        self.synced = asyncio.Event()
        self.lists = 0
        self.trouble = ""
        """Why the last list or watch failed; empty: it did not."""
        self._api, self._read, self._changed, self._jitter = api, read, changed, jitter
        self._one = msgspec.json.Decoder(of)
        self._page = msgspec.json.Decoder(Listed[of])  # type: ignore[valid-type]
        self._raw_page = msgspec.json.Decoder(Listed[msgspec.Raw])
        self._event = msgspec.json.Decoder(WatchEvent)
        self._position = ""  # where a watch may continue; empty: list first
        self._buried: OrderedDict[str, None] = OrderedDict()

    async def run(self) -> None:
        """Follow the collection until cancelled."""
        failures = 0
        while True:
            begun = asyncio.get_running_loop().time()
            try:
                if not self._position:
                    await self._list()
                    failures, self.trouble = 0, ""
                await self._watch()
            except Gone:
                self._position = ""
                continue
            except (Unavailable, Rejected, NotFound) as error:
                if failures == 0:
                    _log.warning("%s: the watch is interrupted: %s", self.path, error)
                wait, self.trouble = getattr(error, "retry_after", None) or 0.0, str(error)
            else:
                if asyncio.get_running_loop().time() - begun >= STEADY_SECONDS:
                    failures = 0
                    continue
                wait = 0.0  # a server that ends every watch at once is not asked in a tight loop
            failures += 1
            wait = max(wait, min(MAX_SECONDS, BASE_SECONDS * 2.0 ** min(failures - 1, 16)))
            await asyncio.sleep(wait * (1.0 + self._jitter() / 2))

    def put(self, document: bytes) -> S | None:
        """Apply the answer to a write of our own, unless the watch is ahead of it; return what is kept."""
        try:
            kept = self._read(self._one.decode(document))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None  # the deletion of an object that went at once is answered with a `Status`
        if kept is not None and (kept.uid in self.objects or kept.version > self.version):
            self._take(kept)
        return kept

    async def refresh(self, selector: str, belongs: Callable[[S], bool]) -> None:
        """List a part of the collection and correct what is kept of it: a watch may have stalled unnoticed.

        Args:
            selector: a further label selector, `name=value`.
            belongs: whether an entry belongs to that part.

        Raises:
            Unavailable, Rejected, NotFound, Gone: the list could not be read.
        """
        found, listed = await self._whole(",".join(filter(None, (self.selector, selector))))
        self._correct(found, version(listed), belongs)

    async def sweep(self) -> None:
        """Compare with what is there: nothing that comes later makes up for the last event, if that never came.

        Versions alone are compared, page by page; everything is read only if the watch does not tell in a moment what
        they differ by.

        Raises:
            Unavailable, Rejected, NotFound, Gone: it could not be read.
        """
        there: dict[str, int] = {}
        listed = 0
        async for page in self._pages(self.selector, accept=METADATA_OF_ALL):
            there |= {each.uid: each.version for each in page.kept}
            listed = version(page.metadata.resource_version)
        await asyncio.sleep(UNDER_WAY_SECONDS)
        if self._is_behind(there, listed):
            _log.warning("%s: the watch missed events; all objects are listed again", self.path)
            await self.refresh("", lambda _kept: True)

    def _is_behind(self, there: Mapping[str, int], listed: int) -> bool:
        for uid, newest in there.items():
            kept = self.objects.get(uid)
            if uid not in self._buried and (kept is None or (kept.version, kept.whole) < (newest, True)):
                return True
        return any(uid not in there and kept.version <= listed for uid, kept in self.objects.items())

    async def _list(self) -> None:
        try:
            found, listed = await self._whole(self.selector)
        except Gone:
            found, listed = await self._whole(self.selector, at_once=True)  # pages went stale while they were read
        self.lists += 1
        self._correct(found, version(listed), lambda _kept: True)
        self.version = max(self.version, version(listed))
        self._position = listed
        self.synced.set()

    async def _whole(self, selector: str, *, at_once: bool = False) -> tuple[list[S], str]:
        if at_once:
            params = {"labelSelector": selector} if selector else {}
            page = self._read_page(await self._api.request("GET", self.path, params=params, timeout=LIST_SECONDS))
            return page.kept, page.metadata.resource_version
        found: list[S] = []
        listed = ""
        async for page in self._pages(selector):
            found += page.kept
            listed = page.metadata.resource_version
        return found, listed

    def _pages(self, selector: str, *, accept: str = JSON) -> AsyncIterator["_Page[S]"]:
        params = {"labelSelector": selector} if selector else {}
        return pages(self._api, self.path, self._read_page, params, accept=accept, timeout=LIST_SECONDS)

    def _read_page(self, answer: bytes) -> "_Page[S]":
        try:
            page = self._page.decode(answer)
        except msgspec.ValidationError:
            # One object that cannot be read must not hide the others.
            raw = self._raw_page.decode(answer)
            objects = [each for document in raw.items or () if (each := self._decode(document)) is not None]
            page = Listed(metadata=raw.metadata, items=objects)
        return _Page([kept for each in page.items or () if (kept := self._read(each)) is not None], page.metadata)

    def _correct(self, found: list[S], listed: int, belongs: Callable[[S], bool]) -> None:
        """Mark and sweep: objects that the list does not have are gone, unless they are newer than the list."""
        there = {kept.uid for kept in found}
        for kept in found:
            self._take(kept)
        missing = [each for each in self.objects.values() if each.uid not in there and belongs(each)]
        for kept in missing:
            if kept.version <= listed:
                self.bury(kept.uid)

    async def _watch(self) -> None:
        params = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._position,
            "timeoutSeconds": str(WATCH_SECONDS + int(WATCH_JITTER_SECONDS * self._jitter())),
        }
        if self.selector:
            params["labelSelector"] = self.selector
        async with contextlib.aclosing(self._api.stream(self.path, params)) as lines:  # type: ignore[type-var]
            async for line in lines:
                self._read_line(line)

    def _read_line(self, line: bytes) -> None:
        """Apply one line of a watch."""
        try:
            event = self._event.decode(line)
            if event.type == "ERROR":
                code = msgspec.json.decode(event.object, type=StatusError).code
                raise refusal(code or 500, bytes(event.object), what=f"watch {self.path}")
            seen = msgspec.json.decode(event.object, type=Seen).metadata
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Unavailable(f"watch {self.path}: a line that is no event: {error}") from error
        if event.type == "DELETED":
            self.bury(seen.uid)
        elif event.type != "BOOKMARK" and (read := self._decode(event.object)) is not None:
            kept = self._read(read)
            if kept is not None:
                self._take(kept)
            elif seen.uid in self.objects:
                self.bury(seen.uid)
        if version(seen.resource_version) >= self.version:
            self._position, self.version = seen.resource_version, version(seen.resource_version)

    def _decode(self, document: msgspec.Raw) -> T | None:
        try:
            decoded: T = self._one.decode(document)
        except msgspec.ValidationError as error:
            _log.warning("%s: an object cannot be decoded: %s", self.path, error)
            return None
        return decoded

    def _take(self, kept: S) -> None:
        before = self.objects.get(kept.uid)
        if kept.uid in self._buried:
            return
        if before is not None and (before.version, before.whole) >= (kept.version, kept.whole):
            return
        self.objects[kept.uid] = kept
        self._changed(before, kept)

    def bury(self, uid: str) -> None:
        """Forget a uid for good: it never comes back, whatever arrives late."""
        self._buried[uid] = None
        if len(self._buried) > MAX_BURIED:
            self._buried.popitem(last=False)
        before = self.objects.pop(uid, None)
        if before is not None:
            self._changed(before, None)
