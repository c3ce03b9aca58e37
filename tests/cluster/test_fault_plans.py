"""A few of the plans that `make faults` plays all of: the same ones in every run."""

import secrets

import pytest
from place import EVIDENCE
from plans.faults import UNNOTICED
from plans.kubelet import node
from plans.suite import play

EVERY = 31


@pytest.mark.parametrize("lives", [("lose", "expire"), ("plain-fail", "suspend")], ids="+".join)
async def test_a_life_with_a_fault_in_it_comes_to_the_same(api, certificates, tmp_path, lives):
    name = f"ty-plans-{secrets.token_hex(3)}"
    async with node(api, name):
        results = await play(
            api,
            node=name,
            tls=certificates,
            folder=tmp_path,
            lives=lives,
            lanes=2,
            chosen=lambda plan: plan.fault not in UNNOTICED,  # which takes minutes
            every=EVERY,
            evidence=EVIDENCE / "plans",
        )
    assert {each.plan.name: each.wrong for each in results if each.wrong} == {}
    assert sum(each.passed for each in results) >= 15
