"""Keeps what pages show up to date: looks at each topic that a page watches, and says which of them have changed.

A page renews what it watches; what no page has renewed for a while is not looked at any more. So the server works only
for what is on a screen, and a page needs no other connection than one stream, which all tabs of a browser share.
"""

import asyncio
import contextlib
import time
from collections import deque
from typing import Any

import msgspec

from torchyard.client.backend import Backend, LogLine
from torchyard.client.errors import FAILED, TorchYardError
from torchyard.ui.content import Content, Reader, Topic

LEASE_SECONDS = 25.0
MAX_TOPICS = 64
KEPT_LINES = 5000
FIRST_LINES = 500
"""Of each rank, that a page shows of a log first."""
MAX_LINES = 2000
NOTICE_SECONDS = 0.2
AGAIN_SECONDS = 2.0
FILES_SECONDS = 0.1
"""Between two looks at the files of a topic, which cost next to nothing."""


class Watched:
    """A topic that pages watch."""

    def __init__(self) -> None:
        self.until = time.monotonic() + LEASE_SECONDS
        self.content: Content | None = None
        self.was_read = False
        self.lines: deque[tuple[int, LogLine]] = deque(maxlen=KEPT_LINES)
        self.number = 0
        self.note = ""
        self.first = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        """Whether no page has renewed it."""
        return time.monotonic() > self.until


class Hub:
    """The topics that are watched, and the streams that hear of changes.

    Args:
        reader: of the topics.
        most: topics at a time.
    """

    def __init__(self, reader: Reader, most: int = MAX_TOPICS) -> None:
        self.reader = reader
        self._most = most
        self.ended = asyncio.Event()
        self.topics: dict[Topic, Watched] = {}
        self.streams: set[asyncio.Queue[bytes]] = set()

    def watch(self, topic: Topic) -> Watched:
        """Look at a topic for the next `LEASE_SECONDS`.

        Raises:
            TorchYardError: there is no such place, or too much is watched.
        """
        self.reader.location(topic.place)
        watched = self.topics.get(topic)
        if watched is None:
            if len(self.topics) >= self._most:
                raise TorchYardError(f"more than {self._most} views are open", "close some tabs")
            watched = self.topics[topic] = Watched()
            watched.task = asyncio.create_task(self._follow(topic, watched))
        watched.until = time.monotonic() + LEASE_SECONDS
        return watched

    async def content(self, topic: Topic) -> Content:
        """Return what a page shows of a topic. Raises what `watch` does."""
        watched = self.watch(topic)
        await watched.first.wait()
        if watched.content is None:
            raise TorchYardError(f"{topic} cannot be read", "the terminal of `torchyard ui` shows why", FAILED)
        return watched.content

    def lines(self, topic: Topic, since: int) -> dict[str, Any]:
        """Return the lines of a log beyond a number, at most `MAX_LINES` of them. Raises what `watch` does."""
        watched = self.watch(topic)
        start = since if since <= watched.number else 0  # the server or the log began again
        fresh = [pair for pair in watched.lines if pair[0] > start][-MAX_LINES:]
        rows = [[number, line.rank, line.pod, line.text, line.round] for number, line in fresh]
        return {"again": start != since, "last": watched.number, "lines": rows, "note": watched.note}

    async def close(self) -> None:
        """Stop looking, and end the streams."""
        self.ended.set()
        for stream in self.streams:
            with contextlib.suppress(asyncio.QueueFull):
                stream.put_nowait(b"{}")
        tasks = [watched.task for watched in self.topics.values() if watched.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def announce(self, topic: Topic, version: str) -> None:
        """Send to every stream that a topic has changed."""
        message = msgspec.json.encode({"topic": str(topic), "version": version})
        for stream in self.streams:
            if stream.full():  # of a browser that does not read: it asks again when it connects again
                stream.get_nowait()
            stream.put_nowait(message)

    async def _follow(self, topic: Topic, watched: Watched) -> None:
        try:
            while not watched.is_over:
                if topic.kind == "logs":
                    if not watched.was_read or await self._runs(topic):
                        await self._follow_log(topic, watched)
                        watched.was_read = True
                    await asyncio.sleep(AGAIN_SECONDS)
                    continue
                mark, begun = self.reader.mark(topic), time.monotonic()
                content = await self.reader.read(topic)
                if watched.content is None or content.digest != watched.content.digest:
                    watched.content = content
                    watched.first.set()
                    self.announce(topic, content.digest)
                await asyncio.sleep(self.reader.pause(topic, time.monotonic() - begun))
                while mark is not None and mark == self.reader.mark(topic) and not watched.is_over:  # noqa: ASYNC110
                    await asyncio.sleep(FILES_SECONDS)
        finally:
            watched.first.set()
            if self.topics.get(topic) is watched:
                del self.topics[topic]

    async def _follow_log(self, topic: Topic, watched: Watched) -> None:
        """Read a log until its job is over."""
        reading = asyncio.create_task(self._read_log(topic, watched))
        shown = -1
        try:
            while not watched.is_over:
                if watched.number != shown:
                    shown = watched.number
                    self.announce(topic, str(shown))
                if reading.done():
                    break
                await asyncio.sleep(NOTICE_SECONDS)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read_log(self, topic: Topic, watched: Watched) -> None:
        async def work(backend: Backend, name: str) -> None:
            tail = FIRST_LINES if not watched.number else 0
            async for line in backend.logs(name, follow=True, tail=tail):
                watched.number += 1
                watched.lines.append((watched.number, line))
                if watched.number % 100 == 0:
                    await asyncio.sleep(0)

        try:
            await self.reader.ask(topic.place, topic.name, work)
        except TorchYardError as error:
            watched.note = error.sentence

    async def _runs(self, topic: Topic) -> bool:
        with contextlib.suppress(TorchYardError):
            kept = await self.reader.ask(topic.place, topic.name, lambda backend, name: backend.get(name))
            return not kept.job.is_over
        return False
