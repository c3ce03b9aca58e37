"""A few of the plans that `make faults` plays all of: the same ones in every run."""

import secrets

import pytest
from tests.cluster.plans.kubelet import node
from tests.cluster.plans.programme import play
from tests.support.cluster.namespaces import EVIDENCE

EVERY = 31
RARE = frozenset(
    {
        "lose: status Running/Training: supplant late",
        "lose: lease renew: 503 for 16 s",
        "lose: status Running/Training: stop, then lease release: drop",
        "lose: status Running/Training: kill after, then read pods: half",
        "lose: create pod job-0-0: exists, then read pods/job-0-0: cut",
        "lose: sync 0-1 running round 1: drop",
    }
)


@pytest.fixture
async def played(api, certificates, tmp_path):
    """Plays plans of lives in two lanes; what came of each."""

    async def run(*lives, **choice):
        name = f"ty-plans-{secrets.token_hex(3)}"
        evidence = EVIDENCE / "plans"
        async with node(api, name):
            results = await play(
                api, node=name, tls=certificates, folder=tmp_path, lives=lives, lanes=2, evidence=evidence, **choice
            )
        assert {each.plan.name: each.wrong for each in results if each.wrong} == {}
        return results

    return run


@pytest.mark.parametrize("lives", [("lose", "expire"), ("plain-fail", "suspend")], ids="+".join)
async def test_a_life_with_a_fault_reaches_the_same_end(played, lives):
    # What nobody notices takes minutes.
    results = await played(*lives, kinds=("write", "news"), chosen=lambda plan: not plan.spoils, every=EVERY)
    assert sum(each.passed for each in results) >= 15


async def test_a_job_in_a_queue_whose_operator_is_killed_reaches_the_same_end(played):
    def chosen(plan):
        return "kill" in plan.name and any(each in plan.name for each in ("workload", "Preempted", "WaitingInQueue"))

    results = await played("queue", kinds=("write",), chosen=chosen)
    if not results:
        pytest.skip("Kueue is installed in this cluster; its own tests kill the operator")
    assert sum(each.passed for each in results) >= 10


async def test_leaders_that_follow_each_other_and_answers_that_never_come_change_nothing(played):
    def chosen(plan):
        return plan.name in RARE or (plan.reveals and any(each.startswith(f"{plan.name},") for each in RARE))

    results = await played("lose", chosen=chosen)
    assert {each.plan.name for each in results if each.passed} == RARE
