"""The events of a run as its controlling process records them: what a full disk refuses waits in memory."""

import asyncio
import logging
import time
from collections import deque

from torchyard.api.times import rfc3339
from torchyard.cluster.local.folder import RunFolder
from torchyard.cluster.local.run import Event, append_events
from torchyard.engine.actions import EmitEvent

MAX_UNWRITTEN = 1000
MAX_SAID = 100
SAY_AGAIN_SECONDS = 60.0

_log = logging.getLogger(__name__)


class Events:
    """Events of one run, for its file and for whoever watches.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._fresh: list[Event] = []
        self._unwritten: deque[Event] = deque(maxlen=MAX_UNWRITTEN)
        self._lock = asyncio.Lock()
        self._said: dict[str, float] = {}

    @property
    def unwritten(self) -> bool:
        """Whether `flush` is due."""
        return bool(self._unwritten)

    async def record(self, event: EmitEvent) -> None:
        """Record an event that happens now."""
        self._add(event)
        await self.flush()

    async def flush(self) -> None:
        """Write what is not on disk yet; if that fails, say so and keep it for the next try."""
        async with self._lock:
            lines = list(self._unwritten)
            if not lines:
                return
            try:
                await asyncio.to_thread(append_events, self._folder, lines)
            except OSError as error:
                self.trouble(f"{self._folder.events_file} cannot be written: {error.strerror}")
                return
            for line in lines:
                if self._unwritten and self._unwritten[0] is line:
                    self._unwritten.popleft()

    def trouble(self, sentence: str) -> None:
        """Say what the folder refuses, once a minute; those who watch see it, whatever the disk does."""
        now = time.monotonic()
        if now - self._said.get(sentence, float("-inf")) >= SAY_AGAIN_SECONDS:
            self._said = {**self._said, sentence: now} if len(self._said) < MAX_SAID else {sentence: now}
            _log.warning("%s", sentence)
            self._add(EmitEvent(type="Warning", reason="FolderNotWritable", message=f"{sentence}; trying again"))

    def take(self) -> list[Event]:
        """The events recorded since the last call."""
        taken, self._fresh = self._fresh, []
        return taken

    def _add(self, event: EmitEvent) -> None:
        line = Event(time=rfc3339(time.time()), type=event.type, reason=event.reason, message=event.message)
        self._fresh.append(line)
        self._unwritten.append(line)
