"""A user's program that hangs in pods: its stacks are shown from outside, and it trains again after the limit."""

import json

import pytest
from tests.cluster.test_command_line import torchyard  # noqa: F401 - a fixture
from tests.support import hanging_program
from tests.support.cluster.jobs import Jobs
from tests.support.cluster.operators import TRAINER_IMAGE, until


@pytest.mark.usefixtures("operator")
async def test_a_rank_that_hangs_is_shown_named_and_trained_past(torchyard, api, namespace):  # noqa: F811 - the fixture
    jobs = Jobs(api, namespace)
    torchyard.starts |= {"stacks"}
    health = {"stall": "60s"}  # time to look at it, also on a busy machine
    await jobs.submit("hangs", image=TRAINER_IMAGE, script=hanging_program.PROGRAM, nodes=2, health=health)
    await jobs.trains("hangs", beyond=2)
    pods = [(await jobs.member("hangs", index))[0] for index in range(2)]
    found = []

    async def hangs() -> bool:
        nonlocal found
        found = json.loads((await torchyard("stacks", "hangs", "-o", "json")).out)
        return len(found) == 2 and "read_batch" in found[1]["at"]

    await until(hangs, why=lambda: found)
    assert [(each["rank"], each["pod"], each["waits"]) for each in found] == [
        (0, pods[0], True),
        (1, pods[1], False),
    ]
    status = await jobs.ends("hangs")
    assert status["state"] == "Succeeded", status["message"]
    first, second = status["attempts"]
    assert (first["reason"], second["endStep"]) == ("WorkerHung", 6)
    assert (first["cause"]["rank"], first["cause"]["pod"], first["cause"]["exitCode"]) == (1, pods[1], 70)
    assert "after step 3, at script.py:" in first["cause"]["exception"]
