"""Waiting in the event loop for what sends no event: the end of a process that is not our child, a file."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

from torchyard.local.process import ProcessId

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
