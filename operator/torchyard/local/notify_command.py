"""Transitions of a run for a program of the user: each one starts it, with the CloudEvent as JSON on its stdin."""

import asyncio
import contextlib
import logging
import os
import signal
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from torchyard.api.formatting import clean
from torchyard.api.resource import TrainingJob
from torchyard.api.status import TrainingJobStatus
from torchyard.reconcile.notifications import cloud_event, encoded, new_notifications

MAX_WAITING = 100
COMMAND_SECONDS = 30.0
MAX_WORDS = 300
_log = logging.getLogger(__name__)


class NotifyCommand:
    """Starts the command for one transition after the other, while a `with` block runs.

    The block ends when all of them were handled, so a program that hangs delays it by `COMMAND_SECONDS` each.

    Args:
        argv: program and arguments; no shell reads them.

    Attributes:
        problem: what was wrong with the newest failure; empty: nothing was.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        self.problem = ""
        self._argv = argv
        self._waiting: deque[bytes] = deque(maxlen=MAX_WAITING)
        self._added, self._over = asyncio.Event(), False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._over = True
        self._added.set()
        if error is not None:
            self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def written(self, job: TrainingJob, status: TrainingJobStatus) -> None:
        """Queue the transitions that a newly written status proves."""
        for notification in new_notifications(job.metadata.uid, job.status, status):
            self._waiting.append(encoded(cloud_event(job, notification)) + b"\n")
            self._added.set()

    async def _run(self) -> None:
        while True:
            while self._waiting:
                await self._start(self._waiting.popleft())
            if self._over:
                return
            self._added.clear()
            await self._added.wait()

    async def _start(self, event: bytes) -> None:
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        try:
            # Its own session: Ctrl-C at the terminal saves and stops the run, and the command tells of that.
            process = await asyncio.create_subprocess_exec(
                *self._argv, stdin=pipe, stdout=null, stderr=pipe, start_new_session=True
            )
        except OSError as error:
            self._failed(error.strerror or str(error))
            return
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                _, errors = await process.communicate(event)
        except (TimeoutError, asyncio.CancelledError) as ended:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            if not isinstance(ended, TimeoutError):
                raise
            self._failed(f"it did not end within {COMMAND_SECONDS:.0f} s")
            return
        if process.returncode:
            last = errors.decode(errors="replace").strip().rpartition("\n")[2]
            self._failed(f"exit code {process.returncode}" + (f": {clean(last)[:MAX_WORDS]}" if last else ""))

    def _failed(self, why: str) -> None:
        self.problem = f"--notify {self._argv[0]}: {why}"
        _log.warning("%s", self.problem)
