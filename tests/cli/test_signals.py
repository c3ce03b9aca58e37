"""Which signals save and stop, and which one alone stops now."""

import asyncio
import os
import signal

import pytest
from tests.support.waiting import DEADLINE

from torchyard.cli.interrupts import SAME_PRESS_SECONDS, Interrupts


@pytest.fixture
def interrupts() -> Interrupts:
    return Interrupts(lambda: "5s")


async def deliver(*numbers: int) -> None:
    """Send signals to this process, one after the other; return when their handlers have run."""
    loop = asyncio.get_running_loop()
    for number in numbers:
        heard = asyncio.Event()
        loop.add_signal_handler(signal.SIGUSR1, heard.set)
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.wait_for(heard.wait(), DEADLINE)
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
async def test_these_only_ask_to_save(interrupts: Interrupts, numbers: tuple[int, ...]) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run below nohup
    try:
        with interrupts.heard():
            await deliver(*numbers)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert interrupts.stop.is_set()
    assert not interrupts.kill.is_set()


async def test_below_nohup_a_closed_terminal_changes_nothing(interrupts: Interrupts) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does before it executes a program
    try:
        with interrupts.heard():
            await deliver(signal.SIGHUP)
            assert not interrupts.stop.is_set()
            await deliver(signal.SIGTERM)
            assert interrupts.stop.is_set()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


async def test_a_second_press_stops_now(interrupts: Interrupts) -> None:
    with interrupts.heard():
        await deliver(signal.SIGINT)
        assert interrupts.pressed is not None
        interrupts.pressed -= SAME_PRESS_SECONDS  # as if that time had gone by
        await deliver(signal.SIGINT)
    assert interrupts.kill.is_set()
    assert interrupts.notice == "stopping now"
