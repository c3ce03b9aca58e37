"""Processes that are not our children: who they are, and how to signal the right one."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from torchyard.local.keeper import stat_fields


class ProcessId(Struct, frozen=True):
    """A process by pid and start time (clock ticks since boot): a pid alone is reused."""

    pid: int
    start: int

    def alive(self) -> bool:
        """Whether this very process still runs; a zombie does not."""
        fields = stat_fields(self.pid)
        return bool(fields) and fields[0] != "Z" and int(fields[19]) == self.start

    def kill(self, number: int) -> None:
        """Signal this very process unless it has ended: a recycled pid is never hit."""
        with suppress(ProcessLookupError, PermissionError):
            try:
                descriptor = os.pidfd_open(self.pid)
            except ProcessLookupError:
                return
            except (OSError, AttributeError):  # an old kernel or a sandbox refuses the call, not the signal
                if self.alive():
                    os.kill(self.pid, number)
                return
            try:
                if self.alive():
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)


def identify(pid: int) -> ProcessId | None:
    """The process that has this pid now; None if there is none."""
    fields = stat_fields(pid)
    return ProcessId(pid, int(fields[19])) if fields else None


def carrying(variable: str, value: str) -> list[ProcessId]:
    """Every process of this user whose environment holds `variable=value`: what a pod started and left behind."""
    wanted = f"{variable}={value}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0") and (process := identify(int(entry.name))):
                found.append(process)
    return found


def kill_carrying(variable: str, value: str, seconds: float = 5.0) -> None:
    """SIGKILL every process that carries the mark until none is left, for at most `seconds`. Blocks: use a thread."""
    deadline = time.monotonic() + seconds
    while (left := [one for one in carrying(variable, value) if one.alive()]) and time.monotonic() < deadline:
        for process in left:
            process.kill(signal.SIGKILL)
        time.sleep(0.01)


_POLL_SECONDS = 0.05


async def ended(process: ProcessId) -> None:
    """Wait until the process has ended, also of another parent, without polling where the kernel can tell us."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    except (OSError, AttributeError):
        await until(lambda: not process.alive(), _POLL_SECONDS)
        return
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_reader(descriptor, over.set)
    try:
        if process.alive():
            await over.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def until(condition: Callable[[], Any], every: float = _POLL_SECONDS) -> None:
    """Wait for something that only a look can tell."""
    while not condition():  # noqa: ASYNC110 - nothing in this process sets an event for it
        await asyncio.sleep(every)


async def within(seconds: float, awaitable: Awaitable[object]) -> bool:
    """Whether `awaitable` came to its end in time; it is cancelled if not."""
    try:
        async with asyncio.timeout(seconds):
            await awaitable
    except TimeoutError:
        return False
    return True
