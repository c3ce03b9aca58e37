"""The registry of agents: what wakes the controller, which command an agent gets, which agents are believed."""

import asyncio

import msgspec
import pytest
from tests.support.virtual_time import virtual_time
from tests.support.waiting import DEADLINE

from torchyard.agents.registry import AgentRegistry, SupersededError, SyncRequest, decode
from torchyard.reconcile.actions import CommandAgent

POD = "pod-uid-0"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Fixture:
    def __init__(self) -> None:
        self.clock = Clock()
        self.news: list[str] = []
        self.registry = AgentRegistry(self.clock, interval=10.0, on_news=self.news.append)
        self.sequence = 0

    def say(self, *, instance: str = "a", sequence: int | None = None, **fields: object) -> SyncRequest:
        if sequence is None:
            self.sequence += 1
            sequence = self.sequence
        body = {"protocol": 1, "instance": instance, "sequence": sequence, "state": "ready"} | fields
        request = decode(msgspec.json.encode(body))
        self.registry.record(POD, request)
        return request

    @property
    def agent(self):
        return self.registry.of([POD])[POD]


@pytest.fixture
def it() -> Fixture:
    return Fixture()


def run_command(round_: int) -> CommandAgent:
    return CommandAgent(
        pod_uid=POD, verb="run", round=round_, nodes=1, master_address="127.0.0.1", master_port=1, procs=1
    )


def report(step: int, **fields: object) -> dict[str, object]:
    return {"round": 1, "rank": 0, "localRank": 0, "step": step, "phase": "step"} | fields


def test_an_agent_that_never_called_in_is_not_in_the_book(it):
    it.registry.command(run_command(1))
    assert it.registry.of([POD]) == {}
    assert it.registry.commanded([POD, "other"]) == {POD: run_command(1)}


def test_a_state_change_wakes_the_controller_at_once(it):
    it.say(state="starting")
    it.say(state="ready")
    it.say(state="running", round=1)
    assert it.news == [POD] * 3


def test_figures_alone_wake_it_at_most_once_an_interval(it):
    it.say(state="running", reports=[report(1)])
    for step in range(2, 50):
        it.clock.now += 0.5
        it.say(state="running", reports=[report(step, metrics={"loss": 1 / step})])
    assert len(it.news) == 1 + 2, "24 seconds of figures"
    assert it.agent.reports[0].metrics == {"loss": 1 / 49}, "though the newest figures are always there"


@pytest.mark.parametrize(
    "change",
    [
        {"reports": [report(0)]},
        {"reports": [report(5, phase="save")]},
        {"reports": [report(5, checkpoint={"step": 4})]},
        {"exit": {"round": 1, "code": 1}},
        {"address": "127.0.0.9"},
        {"procs": 2},
        {"gpus": [{"uuid": "GPU-1"}]},
    ],
)
def test_what_the_plan_acts_on_wakes_the_controller(it, change):
    it.say(state="running", reports=[report(5)])
    it.news.clear()
    it.say(state="running", **{"reports": [report(5)]} | change)
    assert it.news == [POD]


def test_older_requests_are_ignored_but_answered(it):
    it.say(sequence=5, state="running")
    it.say(sequence=4, state="ready")
    assert it.agent.state == "running"
    assert it.registry.counters.stale == 1
    assert it.registry.answer(POD).command == {"verb": "wait"}


def test_a_restarted_agent_supersedes_the_old_one_and_inherits_no_command(it):
    it.say(instance="old", state="running")
    it.registry.command(run_command(3))
    it.say(instance="new", sequence=1, state="starting")
    assert it.agent.instance == "new"
    assert it.registry.commanded([POD]) == {}, "a new process must never join a round that the others have left"
    with pytest.raises(SupersededError):
        it.say(instance="old", state="running")
    assert it.agent.instance == "new"


def test_the_same_command_twice_is_one_revision(it):
    it.say()
    it.registry.command(run_command(1))
    first = it.registry.answer(POD)
    it.registry.command(run_command(1))
    assert it.registry.answer(POD) == first
    it.registry.command(run_command(2))
    assert it.registry.answer(POD).revision == first.revision + 1


async def test_a_command_ends_the_held_poll(it):
    request = it.say(wait=30)
    poll = asyncio.create_task(it.registry.long_poll(POD, request))
    await asyncio.sleep(0)
    assert it.registry.held == 1
    it.registry.command(run_command(1))
    await asyncio.wait_for(poll, DEADLINE)
    assert it.registry.held == 0
    command = it.registry.answer(POD).command
    assert command["verb"] == "run"
    assert command["masterAddress"] == "127.0.0.1"
    assert set(command) == {
        "verb",
        "round",
        "nodes",
        "nodeRank",
        "masterAddress",
        "masterPort",
        "procs",
        "env",
        "code",
        "program",
    }


@virtual_time
async def test_a_poll_is_held_no_longer_than_it_asks(it):
    await it.registry.long_poll(POD, it.say(wait=7))
    assert asyncio.get_running_loop().time() == pytest.approx(7)


async def test_an_agent_that_is_leaving_is_not_held_up(it):
    await asyncio.wait_for(it.registry.long_poll(POD, it.say(wait=30, state="exiting")), DEADLINE)


async def test_a_newer_request_of_the_agent_ends_the_held_poll(it):
    poll = asyncio.create_task(it.registry.long_poll(POD, it.say(wait=30)))
    await asyncio.sleep(0)
    it.say(wait=30, state="running")
    await asyncio.wait_for(poll, DEADLINE)


async def test_the_poll_of_a_superseded_agent_is_refused(it):
    poll = asyncio.create_task(it.registry.long_poll(POD, it.say(wait=30, instance="old")))
    await asyncio.sleep(0)
    it.say(instance="new")
    with pytest.raises(SupersededError):
        await asyncio.wait_for(poll, DEADLINE)


async def test_the_long_poll_of_a_forgotten_pod_ends(it):
    poll = asyncio.create_task(it.registry.long_poll(POD, it.say(wait=30)))
    await asyncio.sleep(0)
    it.registry.forget(POD)
    await asyncio.wait_for(poll, DEADLINE)
    assert it.registry.of([POD]) == {}


async def test_an_agent_is_connected_while_it_polls_and_for_two_intervals_after(it):
    poll = asyncio.create_task(it.registry.long_poll(POD, it.say(wait=30)))
    await asyncio.sleep(0)
    it.clock.now += 1000
    assert it.agent.connected
    it.registry.command(run_command(1))
    await poll
    it.clock.now += 19
    assert it.agent.connected
    it.clock.now += 2
    assert not it.agent.connected
    it.news.clear()
    it.say()
    assert it.agent.connected
    assert it.news == [POD], "coming back is news"


async def test_after_an_operator_restart_old_revisions_mean_nothing(it):
    request = it.say(revision=1, state="running", wait=30)
    poll = asyncio.create_task(it.registry.long_poll(POD, request))
    await asyncio.sleep(0)
    assert it.registry.held == 1, "nothing to say yet, so the poll is held"
    it.registry.command(run_command(7))
    await asyncio.wait_for(poll, DEADLINE)
    assert it.registry.answer(POD).revision not in {0, 1}


async def test_a_command_given_before_the_first_call_reaches_the_agent_at_once(it):
    it.registry.command(run_command(7))
    request = it.say(revision=1, state="running", wait=30)
    await asyncio.wait_for(it.registry.long_poll(POD, request), DEADLINE)
    assert it.registry.answer(POD).command["round"] == 7


def test_an_agent_is_current_once_it_has_obeyed_the_newest_command_which_is_news(it):
    it.say(state="ready")
    assert it.agent.current, "it received no command"
    it.registry.command(run_command(7))
    it.say(state="ready", revision=0)
    assert not it.agent.current, "it said so before it heard of the round"
    it.news.clear()
    it.say(state="ready", revision=it.registry.answer(POD).revision)
    assert (it.agent.current, it.news) == (True, [POD])


def test_a_restarted_agent_is_current_once_it_has_heard_that_it_is_asked_for_nothing(it):
    it.say(state="ready")
    it.registry.command(run_command(7))
    it.say(instance="b", sequence=1, state="ready", revision=0)
    assert not it.agent.current
    it.say(instance="b", sequence=2, state="ready", revision=it.registry.answer(POD).revision)
    assert it.agent.current


def test_what_a_script_reports_is_made_safe(it):
    it.say(
        state="running",
        reports=[
            {
                "round": 1,
                "rank": 0,
                "step": 3.0,
                "epoch": "soon",
                "phase": "st\x1b[31mep",
                "metrics": {"loss": 1, "text": "x", "flag": True, "huge": 10**400} | {f"m{i}": i for i in range(100)},
                "warnings": ["a\r\nb", 5] + ["w"] * 50,
                "checkpoint": {"step": 2, "path": "/x\x00", "time": None},
            },
            {"rank": 1},
            "nonsense",
        ],
        exit={"round": 1, "code": 1, "failure": {"rank": "one", "message": "bad\x07"}, "lines": ["x" * 10000] * 100},
    )
    (read,) = it.agent.reports
    assert read.step == 3
    assert read.epoch is None
    assert read.phase == "step"
    assert read.metrics["loss"] == 1.0
    assert len(read.metrics) == 64
    assert not {"text", "flag", "huge"} & set(read.metrics)
    assert read.warnings[0] == "a b"
    assert len(read.warnings) <= 8
    assert read.checkpoint == {"step": 2, "path": "/x"}
    assert it.agent.exit.failure.rank is None
    assert it.agent.exit.failure.message == "bad"
    assert len(it.agent.exit.lines) <= 20
    assert sum(map(len, it.agent.exit.lines)) <= 4096


async def test_one_that_leads_again_does_not_take_its_former_revisions_for_those_of_the_leader_in_between(it):
    it.say(state="running")
    it.registry.command(run_command(1))
    mine = it.registry.answer(POD).revision
    poll = asyncio.create_task(it.registry.long_poll(POD, it.say(revision=mine, state="running", wait=30)))
    await asyncio.sleep(0)
    it.registry.clear()
    await asyncio.wait_for(poll, DEADLINE)
    assert it.registry.of([POD]) == it.registry.commanded([POD]) == {}
    # Another leader told it more in between; by chance its last revision is the next one of ours.
    it.registry.command(run_command(5))
    request = it.say(revision=mine + 1, state="running", wait=30)
    await asyncio.wait_for(it.registry.long_poll(POD, request), DEADLINE)
    answer = it.registry.answer(POD)
    assert (answer.command["round"], answer.revision != mine + 1) == (5, True)


def test_a_pod_may_send_a_burst_of_requests_and_then_as_many_as_its_rate_allows(it, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("torchyard.agents.registry.time.monotonic", lambda: now[0])
    waits = [it.registry.throttle(POD, rate=2.0, burst=4.0) for _ in range(6)]
    assert waits == [0, 0, 0, 0, 0.5, 0.5], "a rejected request is not counted"
    now[0] += 0.5
    assert [it.registry.throttle(POD, rate=2.0, burst=4.0) for _ in range(2)] == [0, 0.5]
    now[0] += 1000
    assert [it.registry.throttle(POD, rate=2.0, burst=4.0) for _ in range(5)] == [0, 0, 0, 0, 0.5], (
        "no more than a burst"
    )
    assert it.registry.throttle("another pod", rate=2.0, burst=4.0) == 0
    it.registry.forget(POD)
    assert it.registry.of([POD]) == {}
