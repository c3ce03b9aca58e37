"""Volcano itself: a gang of a higher priority takes the place of another one."""

import secrets

import pytest

PATH = "/apis/scheduling.k8s.io/v1/priorityclasses"


@pytest.fixture
async def classes(api):
    """Two priority classes, the lower one first."""
    stem = f"ty-{secrets.token_hex(3)}"
    names = (f"{stem}-low", f"{stem}-high")
    for name, value in zip(names, (1, 1000), strict=True):
        await api.request("POST", PATH, body={"metadata": {"name": name}, "value": value})
    yield names
    for name in names:
        await api.request("DELETE", f"{PATH}/{name}", body={})


@pytest.mark.parametrize("gangs", ["volcano"], indirect=True)
async def test_a_gang_that_volcano_preempts_pays_nothing_and_continues(gangs, classes):
    low, high = classes
    await gangs.submit("low", priorityClass=low)
    await gangs.trains("low", 1)
    await gangs.submit("high", priorityClass=high)
    await gangs.trains("high", 1)
    status = await gangs.jobs.status("low")
    (attempt,) = status["attempts"]
    assert (attempt["reason"], attempt.get("counted", False)) == ("PreemptedByPriority", False)
    await gangs.ends("high")
    status = await gangs.trains("low", 2)
    assert status.get("restarts", {}).get("counted", 0) == 0
    await gangs.ends("low")
    assert gangs.lane.kubelet.overlaps == {}
