"""The events of a run, recorded by its controlling process: while the disk is full they are kept in memory."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

from torchyard.api.reasons import Reason, say
from torchyard.api.values import rfc3339
from torchyard.local.run import Event, RunFolder, append_events
from torchyard.reconcile.actions import EmitEvent

MAX_UNWRITTEN = 1000
RETRY_SECONDS = 2.0
MAX_SAID = 100
SAY_AGAIN_SECONDS = 60.0

_log = logging.getLogger(__name__)


class Events:
    """Events of one run, for its file and for the live view.

    Args:
        folder: of the run.
        changed: called when there is a new event.
    """

    def __init__(self, folder: RunFolder, changed: Callable[[], None]) -> None:
        self._folder, self._changed = folder, changed
        self._fresh: list[Event] = []
        self._unwritten: deque[Event] = deque(maxlen=MAX_UNWRITTEN)
        self._lock = asyncio.Lock()
        self._later: asyncio.Task[None] | None = None
        self._said: dict[str, float] = {}

    async def record(self, event: EmitEvent) -> None:
        """Record an event that happens now; one that cannot be written is shown all the same, and written later."""
        self._add(event)
        await self._flush()

    async def close(self) -> None:
        """Write what waits, if that is possible now."""
        async with self._lock:  # or lines that are being written now would be written twice
            if self._later is not None:
                self._later.cancel()
        await self._flush()
        if self._later is not None:
            self._later.cancel()

    def take(self) -> list[Event]:
        """Return the events recorded since the last call."""
        taken, self._fresh = self._fresh, []
        return taken

    def trouble(self, sentence: str) -> None:
        """Report what the folder rejects, once a minute; the live view shows it even if the disk is full."""
        now = time.monotonic()
        if now - self._said.get(sentence, float("-inf")) >= SAY_AGAIN_SECONDS:
            self._said = {**self._said, sentence: now} if len(self._said) < MAX_SAID else {sentence: now}
            _log.warning("%s", sentence)
            message = say(Reason.FOLDER_NOT_WRITABLE, sentence)
            self._add(EmitEvent(type="Warning", reason=Reason.FOLDER_NOT_WRITABLE, message=message))
        self._write_later()

    def _add(self, event: EmitEvent) -> None:
        line = Event(time=rfc3339(time.time()), type=event.type, reason=event.reason, message=event.message)
        self._fresh.append(line)
        self._unwritten.append(line)
        self._changed()

    async def _flush(self) -> None:
        async with self._lock:
            lines = list(self._unwritten)
            if not lines:
                return
            try:
                await asyncio.to_thread(append_events, self._folder, lines)
            except OSError as error:
                self.trouble(f"{self._folder.events_file}: {error.strerror}")
                return
            for line in lines:
                if self._unwritten and self._unwritten[0] is line:
                    self._unwritten.popleft()

    def _write_later(self) -> None:
        if self._unwritten and (self._later is None or self._later.done()):
            self._later = asyncio.create_task(self._flush_later())

    async def _flush_later(self) -> None:
        while self._unwritten:
            await asyncio.sleep(RETRY_SECONDS)  # a disk that is full does not say when it is not
            await self._flush()
