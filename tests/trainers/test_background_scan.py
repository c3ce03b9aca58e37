"""The check of records beside training: its counts are those of a scan, and a bad record ends or is replaced."""

import os

import pytest

from torchyard_trainers.core.data import background
from torchyard_trainers.core.data.background import BackgroundScan, check_some
from torchyard_trainers.core.data.mixture import hold_out
from torchyard_trainers.core.data.rows import BadRecordError, InMemory, TooLongError
from torchyard_trainers.core.data.samples import Samples
from torchyard_trainers.core.data.scan import Size, scan
from torchyard_trainers.core.exits import DataError, StorageError

COUNT = 3000


def encode(row):
    number = row["number"]
    if number == -1:
        raise StorageError("volume: gone")
    if number % 500 == 499:
        raise BadRecordError("number", "is odd")
    if number % 700 == 699:
        raise TooLongError("number", "is too long", 9)
    return number


def size(number):
    return Size(number % 10 + 1, 3 * (number % 100 == 0))


def records(count=COUNT):
    return InMemory([{"number": number} for number in range(count)])


def checked(sets, folder, *, skip_bad=True, processes=3):
    """Return a check that has ended, and its lines."""
    lines = []
    found = BackgroundScan(
        sets, encode, size, skip_bad=skip_bad, processes=processes, cache=folder, report=lines.append
    )
    found.start()
    for process in list(found._running.values()):
        process.join()  # what they send fits into a pipe
    found.poll()
    return found, lines


@pytest.mark.parametrize("processes", [1, 3])
def test_counts_are_those_of_a_scan_and_computed_once(tmp_path, monkeypatch, processes):
    whole = records()
    expected = scan(whole, encode, size, skip_bad=True, cache=tmp_path)
    found, lines = checked(hold_out(whole, 100, 1), tmp_path, processes=processes)
    lost, every = expected.lost_tokens
    assert found.counts == {
        "bad": expected.bad,
        "too_long": expected.too_long,
        "truncated": expected.truncated,
        "used": every - lost,
        "lost": lost,
    }
    assert found.is_complete
    assert sorted(found.problems) == sorted(expected.problems)
    assert lines[-1].startswith("checked records in the background: 3,000 of 3,000, 100 %, 10 of them cannot be used")
    monkeypatch.setattr(background.multiprocessing, "get_context", None)
    again, _ = checked(hold_out(whole, 100, 1), tmp_path)
    assert (again.counts, again.problems) == (found.counts, found.problems)


def test_a_bad_record_ends_the_job_with_its_place(tmp_path):
    with pytest.raises(
        DataError, match=r"rows, record 500: field 'number' is odd \(checked .* of 3,000 records.*; corr"
    ):
        checked([records()], tmp_path, skip_bad=False, processes=1)


def test_a_volume_that_fails_is_no_bad_record(tmp_path):
    with pytest.raises(StorageError, match="volume: gone"):
        checked([InMemory([{"number": -1}])], tmp_path)


def test_a_check_that_is_killed_is_reported_and_training_continues(tmp_path):
    lines = []
    found = BackgroundScan([records()], _killed, size, skip_bad=False, cache=tmp_path, report=lines.append)
    found.start()
    next(iter(found._running.values())).join()
    found.poll()
    assert lines[-1].startswith("the check of records in the background ended with code -9 at 0 of 3,000; the others")
    assert not found.is_complete


def _killed(_row):
    os.kill(os.getpid(), 9)


def test_the_next_good_record_takes_the_place_of_one_that_cannot_be_used():
    every = list(range(COUNT))
    bad = {number for number in every if number % 500 == 499 or number % 700 == 699}
    samples = Samples(records(), encode, list, skip_bad=True)
    read = samples.read(every)
    assert [number for number in every if read[number] != number] == sorted(bad)
    assert all(read[number] == (number + 1) % COUNT for number in bad)
    strict = Samples(records(), encode, list)
    assert strict.read([699]) == [700], "one that is too long is no bad one"
    with pytest.raises(DataError, match=r"rows, record 500: field 'number' is odd"):
        strict.read([499])
    assert samples.fingerprint != strict.fingerprint


def test_some_records_are_checked_before_the_first_step():
    assert len(check_some(records(450), encode, skip_bad=False, fix="correct it")) == 450
    with pytest.raises(DataError, match=r"record 500: .* \(the others are not checked yet; correct it\)"):
        check_some(records(), encode, skip_bad=False, fix="correct it")
    few = InMemory([{"number": 499}] * 3)
    with pytest.raises(DataError, match=r"record 1: .* \(nor can any of 3 records that are evenly spread\)"):
        check_some(few, encode, skip_bad=True, fix="")
