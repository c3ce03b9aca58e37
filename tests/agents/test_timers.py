"""Polls that are due at about the same time are woken together, none of them early."""

import asyncio
import math

from torchyard.agents.registry import Timers, wake

TICK = 0.1


async def test_all_that_is_due_within_a_tick_is_woken_by_one_timer_and_nothing_early():
    loop = asyncio.get_running_loop()
    timers = Timers(TICK)
    began = loop.time()
    edge = math.ceil((began + 0.5) / TICK) * TICK - began  # so that what follows lies within one tick
    asked = [edge - 0.09, edge - 0.08, edge - 0.07]
    sleepers = [loop.create_future() for _ in asked]
    moments = [timers.set(sleeper, seconds) for sleeper, seconds in zip(sleepers, asked, strict=True)]
    assert moments[0] is moments[1] is moments[2]
    await asyncio.wait(sleepers, return_when=asyncio.FIRST_COMPLETED)
    assert all(sleeper.done() for sleeper in sleepers)
    assert loop.time() - began >= max(asked)


async def test_a_sleeper_that_was_woken_before_stays_as_it_is_and_delays_no_other():
    loop = asyncio.get_running_loop()
    timers = Timers(TICK)
    first, second = loop.create_future(), loop.create_future()
    timers.set(first, 0.0)
    moment = timers.set(second, 0.0)
    wake(second)
    moment.discard(second)
    await first
    assert second.done()
