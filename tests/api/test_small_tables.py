"""Durations, times, names, exit codes and reasons: small tables that three programs rely on."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard.api.exit_codes import EXIT_REASONS, reason_of_exit
from torchyard.api.names import MAX_JOB_NAME, MAX_NODES
from torchyard.api.reasons import Kind, Reason, say
from torchyard.api.resource import read_job, read_status, sparse
from torchyard.api.values import Duration, Time, rfc3339
from torchyard.reconcile.gang import pod_name


@pytest.mark.parametrize(
    ("written", "expected"), [("90s", 90), ("5m", 300), ("2h", 7200), ("1h30m", 5400), ("0s", 0), ("1h1m1s", 3661)]
)
def test_durations_read(written, expected):
    assert Duration(written) == expected


@pytest.mark.parametrize("written", ["", "90", "s", "1.5h", "5m1h", "-1s", "10s\n", "1d", " 1s", "٣s"])
def test_an_invalid_duration_is_rejected_with_its_form(written):
    with pytest.raises(ValueError, match="write it like 90s, 5m or 1h30m"):
        Duration(written)


def test_a_duration_is_a_number_that_is_written_as_it_was_read():
    spec = read_job({"metadata": {"name": "x"}, "spec": {"script": "1", "gracePeriod": "1m"}}).spec
    assert (spec.grace_period + 1, f"{spec.grace_period}", sparse(spec)["gracePeriod"]) == (61, "1m", "1m")
    assert spec.grace_period != Duration("60s"), "or the digest of a job's configuration would change"


def test_an_unreadable_time_of_a_status_counts_as_absent():
    status = read_status({"round": 3, "startTime": "yesterday", "attempts": [{"round": 3, "endTime": ""}]})
    assert (status.round, status.start_time, status.attempts[0].end_time) == (3, None, None)


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00"])
def test_a_time_that_has_no_form_in_utc_counts_as_absent(text):
    assert read_status({"startTime": text}).start_time is None


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**400])
def test_an_integer_of_more_than_64_bits_is_named(number):
    with pytest.raises(ValueError, match=r"64 bits - at `\$\.attempts\[1\]\.endStep`"):
        read_status({"restarts": {"total": 2**63 - 1}, "attempts": [{"round": 1}, {"round": 2, "endStep": number}]})


@given(st.integers(min_value=0, max_value=4_000_000_000))
def test_times_survive_writing_and_reading(unix):
    assert Time.parse(rfc3339(unix)) == unix


def test_times_are_utc_with_whole_seconds():
    assert rfc3339(1763706000.999) == "2025-11-21T06:20:00Z"
    assert Time.parse("2025-11-21T07:20:00.5+01:00") == 1763706000.5
    with pytest.raises(ValueError, match="time zone"):
        Time.parse("2025-11-21T07:20:00")


def test_the_longest_pod_name_fits_a_dns_label():
    assert len(pod_name("x" * MAX_JOB_NAME, 99_999, MAX_NODES - 1)) == 63
    assert pod_name("cvrp", 2, 0) == "cvrp-2-0"


@pytest.mark.parametrize("code", [64, 65, 66, 67, 126, 127])
def test_trying_again_cannot_help(code):
    assert reason_of_exit(code, classified=True).permanent


def test_a_saved_preemption_costs_nothing():
    assert not reason_of_exit(75, classified=True).counted
    assert not reason_of_exit(75, classified=True).permanent


@given(st.integers(min_value=-300, max_value=1000))
def test_every_exit_code_has_a_reason(code):
    assert isinstance(reason_of_exit(code, classified=True), Reason)


def test_signals_without_an_entry_share_a_reason():
    assert reason_of_exit(134, classified=True) is Reason.ABORTED
    assert reason_of_exit(128 + 31, classified=True) is Reason.KILLED_BY_SIGNAL
    assert reason_of_exit(3, classified=True) is Reason.WORKER_FAILED
    assert reason_of_exit(193, classified=True) is Reason.WORKER_FAILED


@pytest.mark.parametrize("code", [*range(64, 77), 126, 127])
def test_a_number_of_the_table_means_nothing_unless_it_is_classified(code):
    assert reason_of_exit(code, classified=False) == "WorkerFailed"
    assert not reason_of_exit(code, classified=False).permanent


def test_reasons_are_camel_case_and_have_a_cause():
    for reason in Reason:
        assert re.fullmatch(r"[A-Z][A-Za-z]+", reason)
        assert reason.sentence
        assert Reason.of(reason.value) is reason
    assert Reason.of("ErrImageNeverPull") is None
    assert len(set(EXIT_REASONS.values())) == len(EXIT_REASONS)


def test_only_reasons_that_a_person_must_resolve_stall_a_job():
    for reason in Reason:
        assert not reason.stalls or reason.next_step, reason
        assert not (reason.stalls and reason.startswith("Missing")), "the same sync may create it a moment later"
        assert not (reason.announced and reason.kind is Kind.CONDITION), reason


def test_a_reason_reads_as_cause_evidence_next_step():
    assert say("WorkerFailed", "rank 1 of cvrp-0-1: ValueError: x") == (
        "a worker failed (rank 1 of cvrp-0-1: ValueError: x); see `torchyard logs`"
    )
    assert say("Suspending") == "the workers are asked to save a checkpoint and to stop"
    assert say("X\x1b[2J", "\x1b]0;owned\x07a\r\n\u202eb\x9b\tc") == "X: a b c"
