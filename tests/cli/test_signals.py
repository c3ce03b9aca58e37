"""Which signals save and stop, and which one alone stops now."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from torchyard.cli.commands.foreground import SAME_PRESS_SECONDS, Watching
from torchyard.local.run import RunFolder


@pytest.fixture
def watching(tmp_path: Path) -> Watching:
    return Watching(RunFolder(tmp_path / "runs" / "job"))


async def deliver(*numbers: int) -> None:
    """Send signals to this process, one after the other; return when their handlers have run."""
    loop = asyncio.get_running_loop()
    for number in numbers:
        heard = asyncio.Event()
        loop.add_signal_handler(signal.SIGUSR1, heard.set)
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.wait_for(heard.wait(), 30)
    loop.remove_signal_handler(signal.SIGUSR1)


@pytest.mark.parametrize(
    "numbers",
    [
        (signal.SIGHUP, signal.SIGHUP),
        (signal.SIGTERM, signal.SIGTERM, signal.SIGHUP),
        (signal.SIGINT, signal.SIGINT),
        (signal.SIGINT, signal.SIGHUP),
        (signal.SIGTERM, signal.SIGINT),
    ],
    ids=[
        "a closed terminal",
        "a shutdown",
        "one press delivered twice",
        "a press, then a closed terminal",
        "a first press",
    ],
)
async def test_these_only_ask_to_save(watching: Watching, numbers: tuple[int, ...]) -> None:
    with watching._signals():
        await deliver(*numbers)
    assert watching.stop.is_set()
    assert not watching.kill.is_set()


async def test_a_second_press_stops_now(watching: Watching) -> None:
    with watching._signals():
        await deliver(signal.SIGINT)
        assert watching.pressed is not None
        watching.pressed -= SAME_PRESS_SECONDS  # as if that time had gone by
        await deliver(signal.SIGINT)
    assert watching.kill.is_set()
    assert watching.notice == "stopping now"
