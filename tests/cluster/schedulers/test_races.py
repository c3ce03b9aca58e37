"""Two gangs compete for room for one: with every scheduler, one runs and the other holds nothing until it may."""

import contextlib

import pytest
from tests.support.cluster.gangs import queues

RACES = 20
WAKES_WITHIN = 5.0  # seconds, on a busy machine; benchmarks/gang_races.py measures it
FLUSH = 300.0  # seconds after which kube-scheduler tries all pods again


@pytest.mark.parametrize("gangs", ["kueue", "native", "volcano", "coscheduling"], indirect=True)
async def test_never_is_a_gang_placed_in_part_and_nothing_is_left(api, gangs):
    async with contextlib.AsyncExitStack() as stack:
        if gangs.scheduler == "kueue":
            await stack.enter_async_context(queues(api, gangs.jobs.namespace, gangs.lane.kubelet.node))
        waits = [await gangs.race(number) for number in range(RACES)]
        await gangs.no_leak()
    assert sorted(waits)[RACES // 2] < WAKES_WITHIN
    assert max(waits) < FLUSH, "nothing but the flush of the scheduler's queue woke a gang"
