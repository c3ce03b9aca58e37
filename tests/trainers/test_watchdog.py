"""A worker that stands still ends with its stacks, its phase and 70; one that is merely slow is left alone."""

import threading
import time

import pytest
from tests.support.trainers.gangs import config
from tests.support.waiting import DEADLINE

from torchyard_trainers.core.watchdog import Patience, Watchdog


def test_an_unknown_phase_gets_half_an_hour():
    assert Patience(None).seconds("restore") == 1800


@pytest.mark.parametrize(("slowest", "patience"), [(0.1, 600), (30, 600), (120, 2400)])
def test_a_phase_may_take_twenty_times_what_it_took_before_and_ten_minutes_at_least(slowest, patience):
    known = Patience(None)
    known.moved("step", 0.05)
    known.moved("step", slowest)
    known.moved("save", 1000)
    assert known.seconds("step") == patience


@pytest.mark.parametrize(("limit", "start"), [(90, 1800), (7200, 7200)])
def test_a_limit_that_was_set_holds_in_every_phase_once_a_step_was_made(limit, start):
    patience = Patience(limit)
    patience.moved("init", 80)
    assert (patience.seconds("compile"), patience.seconds("step")) == (start, start)
    patience.started = True
    assert {patience.seconds(phase) for phase in ("step", "save", "eval")} == {limit}


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr("torchyard_trainers.core.watchdog.TICK_SECONDS", 0.01)


@pytest.mark.usefixtures("fast")
def test_a_rank_with_progress_is_left_alone_and_one_without_progress_is_not():
    facts = {"counter": 0, "phase": "step", "step": 3, "roundSteps": 1}
    errors, bitten = [], threading.Event()

    def bite(error):
        errors.append(error)
        bitten.set()
        threading.Event().wait()  # as one that ends the process

    def moving():
        facts["counter"] += 0 if over else 1
        return dict(facts)

    over = False
    Watchdog(moving, Patience(0.1), bite).start()
    watched = time.monotonic() + 0.5
    while time.monotonic() < watched:
        assert not bitten.is_set()
    over = True
    assert bitten.wait(DEADLINE)
    (error,) = errors
    assert (error.phase, error.step, error.secondary) == ("step", 3, False)
    assert "in phase step after step 3" in str(error)


@pytest.mark.usefixtures("fast")
def test_a_save_is_waited_for_as_long_as_it_was_written_beside_training(monkeypatch):
    monkeypatch.setattr("torchyard_trainers.core.watchdog.SHORTEST_SECONDS", 0.1)
    patience, bitten = Patience(None), threading.Event()
    patience.moved("save", 0.001)  # what training stood still for a copy
    facts = {"counter": 7, "phase": "save", "step": 3, "roundSteps": 1, "checkpoint": {"saveSeconds": 60.0}}
    watchdog = Watchdog(lambda: dict(facts), patience, lambda _verdict: bitten.set()).start()
    assert not bitten.wait(0.5)
    watchdog.stop()


@pytest.mark.e2e
def test_a_hanging_rank_is_named_and_the_one_that_waits_for_it_is_not_the_cause(yard):
    gang = yard.start(config(health={"stallSeconds": 12}), world=2, function=("faults:train_with_a_hang", [5 * 12 + 1]))
    codes = gang.wait()
    assert codes[1] == 70, gang.output()
    assert codes[0] in (70, 76)
    failure = yard.failure(1)
    assert (failure["code"], failure["secondary"], failure["phase"], failure["step"]) == (70, False, "step", 5)
    assert "train_with_a_hang" in failure["traceback"]
    assert yard.failure(0)["secondary"] is True
    assert "train_with_a_hang" in gang.logs[1].read_text(), "the stacks are in the log of the rank"
