"""The budget of writes, on virtual time."""

import asyncio

import pytest
from tests.support.virtual_time import in_virtual_time, virtual_time

from torchyard.kubernetes.client.api import Budget


async def spend(budget: Budget, namespace: str, number: int, *, seconds: float = 0.0, log: list | None = None) -> None:
    """So many writes of one namespace at once, each of which takes a while."""

    async def write() -> None:
        async with budget.admit(namespace):
            if log is not None:
                log.append(namespace)
            await asyncio.sleep(seconds)

    await asyncio.gather(*(write() for _ in range(number)))


def elapsed(budget: Budget, number: int, seconds: float = 0.0) -> float:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await spend(budget, "a", number, seconds=seconds)
        return loop.time() - begun

    return in_virtual_time(main)


def test_a_burst_goes_at_once_and_the_rest_at_the_rate():
    assert elapsed(Budget(rate=10, burst=20), 20) == 0
    assert elapsed(Budget(rate=10, burst=20), 120) == pytest.approx(10, abs=0.2)


def test_no_more_are_under_way_than_allowed():
    assert elapsed(Budget(rate=1000, burst=1000, in_flight=4), 40, seconds=1.0) == pytest.approx(10, abs=0.1)


@virtual_time
async def test_a_quiet_time_fills_the_bucket_to_its_brim_and_no_further():
    budget = Budget(rate=10, burst=20)
    await spend(budget, "a", 20)
    await asyncio.sleep(3600)
    begun = asyncio.get_running_loop().time()
    await spend(budget, "a", 30)
    assert asyncio.get_running_loop().time() - begun == pytest.approx(1.0, abs=0.11)


@virtual_time
async def test_a_namespace_with_few_writes_does_not_wait_behind_one_with_many():
    log: list[str] = []
    budget = Budget(rate=10, burst=1, in_flight=8)
    many = asyncio.create_task(spend(budget, "many", 500, log=log))
    await asyncio.sleep(1)
    begun = asyncio.get_running_loop().time()
    await spend(budget, "few", 5, log=log)
    assert asyncio.get_running_loop().time() - begun < 1.5, "in turn: ten writes for its five"
    many.cancel()
    await asyncio.gather(many, return_exceptions=True)


@virtual_time
async def test_it_is_busy_while_a_write_has_to_wait_and_for_a_moment_after():
    budget = Budget(rate=1000, burst=1000, in_flight=4)
    work = asyncio.create_task(spend(budget, "a", 4, seconds=1.0))
    await asyncio.sleep(0.5)
    assert not budget.busy, "all of them are under way"
    more = asyncio.create_task(spend(budget, "b", 1, seconds=1.0))
    await asyncio.sleep(0.1)
    assert budget.busy
    await asyncio.sleep(0.8)
    assert (budget.waiting, budget.busy) == (0, True)
    await asyncio.gather(work, more)
    assert not budget.busy


@virtual_time
async def test_429_halves_the_rate_once_however_many_are_refused_and_time_wins_it_back():
    budget = Budget(rate=100, burst=100)
    for _ in range(50):
        budget.answered(429)
    assert budget.rate == 50
    await asyncio.sleep(1.0)
    budget.answered(429)
    assert budget.rate == 25
    await asyncio.sleep(20)
    await spend(budget, "a", 1)
    assert budget.rate == 100


@virtual_time
async def test_answers_that_are_no_429_change_nothing():
    budget = Budget(rate=100, burst=100)
    for code in (0, 200, 201, 403, 409, 500, 503):
        budget.answered(code)
    assert budget.rate == 100


@virtual_time
async def test_writes_that_are_given_up_cost_other_jobs_nothing():
    budget = Budget(rate=1000, burst=1000, in_flight=2)
    under_way = [asyncio.create_task(spend(budget, "a", 1, seconds=100)) for _ in range(2)]
    waiting = [asyncio.create_task(spend(budget, "a", 1, seconds=100)) for _ in range(10)]
    await asyncio.sleep(1)
    for task in (*waiting, *under_way):
        task.cancel()
    await asyncio.gather(*waiting, *under_way, return_exceptions=True)
    async with asyncio.timeout(1):
        await spend(budget, "a", 2)
    assert budget.waiting == 0


@pytest.mark.parametrize("wrong", [{"rate": 0.5}, {"burst": 0}, {"rate": -3}])
def test_a_budget_that_allows_nothing_is_refused_by_the_names_of_its_flags(wrong):
    with pytest.raises(ValueError, match=r"--qps .* --burst"):
        Budget(**wrong)
