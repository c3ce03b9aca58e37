"""When a waiting job may start: the forecasts of running jobs against a definition that looks at every moment."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard.api.queue_position import about, words
from torchyard.api.status import GangStatus
from torchyard.api.values import Time
from torchyard.schedulers.protocol import QueuePosition
from torchyard.schedulers.queue_estimate import ClusterQueue, Holder, Waiting, queue_positions, rounded, start_time

NOW = 1_800_000_000.0
AFTER_OTHERS = (
    "place 3 in the queue, about 8 min, if running jobs end as they forecast; "
    "1 Workload ahead of it is not of TrainingJobs and not counted"
)
GPU = "nvidia.com/gpu"


def gpus(count):
    return {GPU: Decimal(count)}


def holder(count, minutes):
    return Holder(amounts=gpus(count), ends=None if minutes is None else NOW + 60 * minutes)


AMOUNTS = st.fixed_dictionaries({GPU: st.integers(0, 8).map(Decimal), "cpu": st.integers(0, 8).map(Decimal)})
HOLDERS = st.lists(
    st.builds(Holder, amounts=AMOUNTS, ends=st.none() | st.floats(-600, 7200).map(lambda each: NOW + each)), max_size=6
)


def by_definition(holders, need, free):
    """The earliest moment at which all that is free by then covers the need."""
    moments = [NOW, *(max(NOW, each.ends) for each in holders if each.ends is not None)]

    def covers(moment):
        ended = [each.amounts for each in holders if each.ends is not None and max(NOW, each.ends) <= moment]
        return all(free[name] + sum(each[name] for each in ended) >= need[name] for name in need)

    # What has already ended by its forecast still holds its quota: it counts as ending now.
    if all(free[name] >= need[name] for name in need):
        return NOW
    return min((moment for moment in moments if covers(moment)), default=None)


@given(holders=HOLDERS, need=AMOUNTS, free=AMOUNTS)
def test_it_is_the_first_moment_at_which_enough_has_ended(holders, need, free):
    assert start_time(holders, need, free, NOW) == by_definition(holders, need, free)
    assert start_time(holders[::-1], need, free, NOW) == start_time(holders, need, free, NOW)


@given(holders=HOLDERS, need=AMOUNTS, more=AMOUNTS, free=AMOUNTS)
def test_a_larger_job_never_starts_earlier(holders, need, more, free):
    larger = {name: need[name] + more[name] for name in need}
    late = start_time(holders, larger, free, NOW)
    early = start_time(holders, need, free, NOW)
    assert late is None or (early is not None and early <= late)


@given(holders=HOLDERS, free=AMOUNTS, jobs=st.lists(st.tuples(st.integers(0, 3), AMOUNTS), min_size=1, max_size=6))
def test_places_are_in_order_and_a_later_place_never_starts_earlier(holders, free, jobs):
    position, waiting = 0, []
    for number, (others, amounts) in enumerate(jobs):
        position += others
        waiting.append(Waiting(uid=str(number), position=position, amounts=amounts))
        position += 1
    queue = ClusterQueue(free=free, holders=tuple(holders), waiting=tuple(reversed(waiting)))
    found = [queue_positions(queue, NOW, {})[str(number)] for number in range(len(jobs))]
    assert [each.position for each in found] == sorted(each.position for each in found)
    assert [each.uncounted for each in found] == [each.position - number - 1 for number, each in enumerate(found)]
    starts = [float("inf") if each.start is None else each.start for each in found]
    assert starts == sorted(starts)
    assert all(each >= NOW for each in starts)


def test_a_queue_of_equal_jobs():
    """Eight GPUs: two jobs of four end in 10 and 40 minutes, three wait for four each."""
    queue = ClusterQueue(
        free=gpus(0),
        holders=(holder(4, 40), holder(4, 10)),
        waiting=tuple(Waiting(uid=f"{each}", position=each, amounts=gpus(4)) for each in range(3)),
    )
    found = queue_positions(queue, NOW, {})
    assert [found[uid].start for uid in "012"] == [NOW + 600, NOW + 2400, None]


def test_jobs_without_a_forecast_make_no_estimate():
    assert start_time([holder(4, None), holder(2, 10)], gpus(4), gpus(0), NOW) is None


def test_an_estimate_that_hardly_changed_stays():
    waiting = (Waiting(uid="a", position=0, amounts=gpus(4)),)

    def place(minutes, before, now=NOW):
        return queue_positions(ClusterQueue(free={}, holders=(holder(4, minutes),), waiting=waiting), now, before)

    first = place(40, {})
    assert place(42, first) == first
    assert place(60, first)["a"].start == NOW + 3600


@given(st.integers(1, 10**6))
def test_a_place_far_behind_has_two_digits_and_is_never_too_low(place):
    shown = rounded(place)
    assert place <= shown <= place * 1.1
    assert shown == place or str(shown)[2:].strip("0") == ""


@pytest.mark.parametrize(
    ("position", "uncounted", "minutes", "text"),
    [
        (1, 0, 38, "next in the queue, about 40 min, if running jobs end as they forecast"),
        (3, 0, None, "place 3 in the queue"),
        (3, 1, 8, AFTER_OTHERS),
        (3, 2, None, "place 3 in the queue; 2 Workloads ahead of it are not of TrainingJobs"),
        (1, 0, 0.5, "next in the queue, soon, if running jobs end as they forecast"),
        (None, 0, None, ""),
    ],
)  # fmt: skip
def test_the_words(position, uncounted, minutes, text):
    start = None if minutes is None else Time.of(NOW + 60 * minutes)
    gang = GangStatus(enforced_by="kueue", position=position, uncounted=uncounted, expected_start_time=start)
    assert words(gang, NOW) == text


@given(st.floats(60, 10**6))
def test_an_estimate_is_rounded_up_by_less_than_the_half_of_it(seconds):
    gang = GangStatus(enforced_by="kueue", position=1, expected_start_time=Time(NOW + seconds))
    number, unit = about(gang, NOW).removeprefix("about ").split()
    shown = int(number) * {"min": 60, "h": 3600, "d": 86400}[unit]
    assert seconds - 1 <= shown <= max(seconds * 1.5, seconds + 60)


def test_no_place_is_no_words():
    assert words(None, NOW) == about(None, NOW) == ""
    assert QueuePosition(position=1).start is None
