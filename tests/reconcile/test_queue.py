"""The work queue keeps the promises that client-go's keeps."""

import asyncio

import pytest
from tests.support.virtual_time import virtual_time

from torchyard.reconcile.loop.controller import Closed, WorkQueue


def now():
    return asyncio.get_running_loop().time()


def queue(**settings):
    return WorkQueue(**{"base": 1.0, "most": 60.0, "jitter": lambda: 0.0} | settings)


@virtual_time
async def test_a_key_added_many_times_is_handed_out_once():
    keys = queue()
    for key in "abaab":
        keys.add(key)
    got = [await keys.get() for _ in range(len(keys))]
    assert got == ["a", "b"]


@virtual_time
async def test_a_key_added_while_it_is_processed_comes_again_but_never_to_two_workers():
    keys = queue()
    active, most, seen = 0, 0, 0

    async def worker():
        nonlocal active, most, seen
        while True:
            key = await keys.get()
            active, seen = active + 1, seen + 1
            most = max(most, active)
            await asyncio.sleep(1)
            active -= 1
            keys.done(key)

    workers = [asyncio.create_task(worker()) for _ in range(4)]
    for _ in range(10):
        keys.add("job")
        await asyncio.sleep(0.3)
    await asyncio.sleep(5)
    for task in workers:
        task.cancel()
    assert most == 1
    assert seen == 4, "three seconds of additions: one run a second and one for the last"


@virtual_time
async def test_failures_wait_exponentially_longer_up_to_a_limit_each_key_for_itself():
    keys = queue(most=5.0)
    assert [keys.fail("bad") for _ in range(5)] == [1, 2, 4, 5, 5]
    assert keys.fail("other") == 1
    keys.succeed("bad")
    assert keys.fail("bad") == 1


@virtual_time
async def test_jitter_spreads_the_delay_by_half_of_itself_at_most():
    assert queue(jitter=lambda: 0.999).fail("key") == pytest.approx(1.5, abs=0.001)


@virtual_time
async def test_a_server_that_asks_to_wait_is_given_that_time():
    keys = queue()
    assert keys.fail("key", at_least=30.0) == 30.0
    await keys.get()
    assert now() == 30.0


@virtual_time
async def test_of_several_delays_of_a_key_the_earliest_applies():
    keys = queue()
    keys.add_after("key", 60)
    keys.add_after("key", 5)
    keys.add_after("key", 30)
    await keys.get()
    assert now() == 5
    keys.done("key")
    await asyncio.sleep(100)
    assert len(keys) == 0


@virtual_time
async def test_shut_down_hands_out_what_is_due_and_then_ends():
    keys = queue()
    keys.add("due")
    keys.add_after("later", 1)
    keys.close()
    keys.add("too late")
    assert await keys.get() == "due"
    with pytest.raises(Closed):
        await keys.get()


@virtual_time
async def test_all_waiting_workers_end_at_shut_down():
    keys = queue()
    waiting = [asyncio.create_task(keys.get()) for _ in range(3)]
    await asyncio.sleep(1)
    keys.close()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [Closed] * 3


@virtual_time
async def test_two_keys_are_processed_side_by_side():
    keys = queue()
    waiting = [asyncio.create_task(keys.get()) for _ in range(2)]
    await asyncio.sleep(1)
    keys.add("a")
    keys.add("b")
    assert sorted(await asyncio.gather(*waiting)) == ["a", "b"]
