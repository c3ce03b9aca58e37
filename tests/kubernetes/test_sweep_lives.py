"""Lives of a sweep, drawn from seeds: whatever befalls calls, news, operators and trials, it decides the same."""

from collections import Counter

import pytest
from tests.support.kubernetes.sweep_life import play
from tests.support.kubernetes.sweep_operators import OF_LISTS, OF_NEWS, OF_READS, OF_WRITES

SEEDS = range(1, 25)


@pytest.fixture(scope="module")
def lives():
    return {seed: play(seed) for seed in SEEDS}


def test_faults_change_no_decision(lives):
    for seed, (life, calm, wild) in lives.items():
        assert not life.broken, f"seed {seed}: {life.notes[-40:]}"
        assert wild == calm, f"seed {seed}: {life.notes[-40:]}"


def test_the_lives_have_every_fault_and_every_kind_of_end(lives):
    seen = sum((life.weather.seen for life, _, _ in lives.values()), Counter())
    assert seen.keys() >= {*OF_LISTS, *OF_NEWS, *OF_READS, *OF_WRITES, "suspend", "preempted", "deleted", "fail"}
    ends = [end for _, (_, last), _ in lives.values() for name, end in last.items() if name not in {"best", "status"}]
    assert {outcomes[-1].kind for _, _, outcomes in ends} == {"complete", "stopped", "failed"}
    assert any(len(units) > 1 for _, units, _ in ends), "a stopped trial is promoted"
