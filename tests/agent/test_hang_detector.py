"""Programs of users that stand still: the rank that does is named, not those that wait for it; slow ones are left."""

import pytest
from tests.support import hanging_program

from torchyard_agent.telemetry.hang_detector import (
    MEETING_SECONDS,
    HangDetector,
    StackLocation,
    find_hung_rank,
    stack_location,
)

WAITING = """Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/work/train.py", line 3 in watch

Current thread 0x00007f02 (most recent call first):
  File "/run/torchyard-agent.pyz/torchyard_agent/telemetry/waits.py", line 88 in measured
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2501 in all_reduce
  File "/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/work/train.py", line 40 in main
  File "/work/train.py", line 60 in <module>
"""
READING = """Current thread 0x00007f02 (most recent call first):
  File "/usr/lib/python3.11/selectors.py", line 415 in select
  File "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1251 in _try_get_data
  File "/work/data.py", line 12 in read_batch
  File "<frozen runpy>", line 88 in _run_code
"""


BUILT_IN = """Current thread 0x00007f02 (most recent call first):
  File "/usr/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2501 in all_reduce
  File "/usr/lib/python3.11/site-packages/torchyard_trainers/core/step.py", line 88 in reduced
"""


def report(rank, step, **more):
    return {"rank": rank, "step": step, "phase": "step", **more}


def looked(standstill, until, of, every=1.0):
    """Look from 0 on, `every` seconds apart; return the first look that finds a rank."""
    now = 0.0
    while now <= until:
        found = standstill.look(of(now), now)
        if found:
            return now, found
        now += every
    return None


def test_a_rank_without_progress_for_the_limit_hangs_and_one_with_progress_does_not():
    found = looked(HangDetector(30), 100, lambda now: [report(0, 1 + int(now)), report(1, 1 + min(10, int(now)))])
    assert found == (40, {1: 30})


@pytest.mark.parametrize("moves", ["counter", "step", "epoch", "phase"])
def test_anything_a_report_counts_is_a_sign_of_life(moves):
    assert looked(HangDetector(30), 200, lambda now: [{**report(0, 7), moves: int(now) // 20 + 8}]) is None


@pytest.mark.parametrize("before", [{"step": 0}, {"step": 900, "phase": "restore"}, {"step": 900, "phase": "compile"}])
def test_no_rank_is_judged_before_its_first_step_nor_without_a_limit(before):
    assert looked(HangDetector(30), 100, lambda _: [{**report(0, 1), **before}]) is None
    assert looked(HangDetector(None), 100, lambda _: [report(0, 1)]) is None


def test_a_pod_that_was_stopped_as_a_whole_is_not_held_against_its_ranks():
    assert looked(HangDetector(30), 29 * 600, lambda _: [report(0, 1)], every=600) == (15 * 600, {0: 30})


def test_a_rank_that_has_ended_does_not_stand_still():
    assert looked(HangDetector(30), 100, lambda now: [report(0, int(now) + 1)] + [report(1, 9)] * (now < 20)) is None


def test_the_place_is_the_users_own_and_the_main_threads():
    assert stack_location(READING) == StackLocation("data.py:12 in read_batch", waits=False)
    assert stack_location(WAITING) == StackLocation("train.py:40 in main", waits=True)
    assert stack_location(BUILT_IN) == StackLocation("step.py:88 in reduced", waits=True)
    assert stack_location("") == stack_location("no answer") == StackLocation("", waits=False)


def test_the_cause_is_the_rank_that_waits_for_no_other_then_the_one_behind():
    reports = [report(0, 8), report(1, 8), report(2, 7)]
    overdue = {0: 31.0, 1: 30.0, 2: 30.4}
    found = find_hung_rank(overdue, {0: WAITING, 1: READING, 2: WAITING}, reports, world=3)
    assert (found.rank, found.secondary, found.stacks) == (1, False, READING)
    assert found.message == "no step for 30 s after step 8, at data.py:12 in read_batch"
    found = find_hung_rank(overdue, {0: WAITING, 1: WAITING, 2: WAITING}, reports, world=3)
    assert (found.rank, found.secondary) == (2, True)
    assert found.message == "no step for 30 s after step 7, at train.py:40 in main, waiting for other ranks"
    found = find_hung_rank(overdue, {0: READING, 1: WAITING}, reports, world=3)
    assert found.rank == 0, "where rank 2 hangs is unknown"
    assert find_hung_rank(overdue, {0: WAITING, 1: WAITING}, reports, world=3).rank == 2


def test_ranks_that_wait_for_others_are_reported_later_and_once():
    standstill = HangDetector(30)
    assert looked(standstill, 100, lambda _: [report(0, 1)]) == (30, {0: 30})
    assert standstill.wait_for_others()
    assert standstill.look([report(0, 1)], 31) == {}
    assert standstill.look([report(0, 1)], 33) == {}
    assert not standstill.wait_for_others()
    assert MEETING_SECONDS > 2


@pytest.mark.parametrize(("phase", "slowest", "limit"), [("step", 1, 600), ("step", 60, 1200), ("eval", 1, 1800)])
def test_an_unusually_long_pause_is_reported_without_a_limit(phase, slowest, limit):
    standstill = HangDetector(None)
    steps = range(0, 5 * slowest, slowest)
    for now in range(5 * slowest + 2 * limit):
        step = 1 + sum(now >= each for each in steps)
        rank = report(0, step, phase="step" if now < 4 * slowest else phase)
        assert standstill.look([rank], now) == {}
        quiet = standstill.quiet(rank)
        assert quiet is None or now - 4 * slowest >= limit - 20
    assert quiet is not None
    assert quiet >= limit


@pytest.mark.e2e
def test_a_rank_that_hangs_is_named_and_the_next_round_trains(pod, script):
    node = pod("torchrun", script(hanging_program.PROGRAM), TORCHYARD_STALL_SECONDS="20")  # steps may take seconds
    node.ready()
    node.run(1, procs=2)
    ended = node.ended()
    failure = ended["failure"]
    assert (ended["code"], ended["asked"], failure["rank"], failure["code"]) == (70, False, 1, 70)
    assert (failure["secondary"], failure["step"], failure["exception"]) == (False, 3, "Hung")
    assert "after step 3, at train.py:" in failure["message"]
    assert failure["message"].endswith(" in read_batch")
    assert "in read_batch" in node.log(1), "the stacks of a rank are in its log"
    assert "all_reduce" in node.log(0)
    node.run(2, procs=2)
    assert node.ended()["code"] == 0


def test_a_rank_that_is_alone_waits_for_no_other():
    (report,) = [{"rank": 0, "step": 7}]
    found = find_hung_rank({0: 60.0}, {0: WAITING}, [report], world=1)
    assert not found.secondary
    assert "waiting for other ranks" not in found.message
