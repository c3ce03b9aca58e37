"""A status stays within 64 KiB, and never loses what a restarted operator goes on from."""

import uuid

import msgspec
import pytest

from torchyard.api import values
from torchyard.api.names import MAX_NODES
from torchyard.api.status import (
    CONDITION_TYPES,
    MAX_ATTEMPTS,
    MAX_CURVES,
    MAX_METRICS,
    MAX_STATUS_BYTES,
    MAX_WARNING,
    MAX_WARNINGS,
    Attempt,
    AvoidedNode,
    Cause,
    CheckpointStatus,
    Condition,
    Curve,
    Goodput,
    Rendezvous,
    State,
    TrainingJobStatus,
    bounded,
)
from torchyard.api.values import Time
from torchyard.reconcile.node_memory import MAX_AVOIDED
from torchyard.reconcile.progress import MAX_DEVICES

TIME = Time.parse("2026-11-21T06:20:00Z")
LINES = ["x" * 200] * 20
BADLY = Cause(
    rank=8191,
    pod="p" * 63,
    node="n" * 253,
    exit_code=137,
    class_="WorkerFailed",
    exception="e" * 2000,
    lines=LINES,
    events=["v" * 300] * 4,
)


def fullest(nodes, members=None):
    """A status with everything that it can hold."""
    words = "w" * 1000
    return TrainingJobStatus(
        state=State("Recovering"),
        reason="NoProgress",
        message=words,
        conditions=[
            Condition(type=each, status="False", reason="R" * 40, message=words, last_transition_time=TIME)
            for each in CONDITION_TYPES
        ],
        rendezvous=Rendezvous(
            open=True,
            master_address="fd00:1111:2222:3333:4444:5555:6666:7777",
            master_port=65535,
            members=members or [str(uuid.UUID(int=2**127 + index)) for index in range(nodes)],
        ),
        metrics={f"{index:02}{'m' * 62}": -1.2345678901234567e-100 for index in range(MAX_METRICS)},
        curves={f"{index}{'m' * 63}": Curve(width=2**40, data="A" * 1880) for index in range(MAX_CURVES)},
        checkpoint=CheckpointStatus(step=10**9, time=TIME, path="/" * 1024, bytes=10**15, save_seconds=1e6),
        devices={f"cuda:{index} {'d' * 57}": "8," * 102 for index in range(MAX_DEVICES)},
        warnings=["w" * MAX_WARNING] * MAX_WARNINGS,
        goodput=Goodput(percent=12.34, seconds=dict.fromkeys("abcdefghij", 1234567.123)),
        avoided_nodes=[
            AvoidedNode(node="n" * 253, reason="HardwareSuspected", failures=64, time=TIME) for _ in range(MAX_AVOIDED)
        ],
        attempts=[
            Attempt(round=10**6 + index, start_time=TIME, end_time=TIME, reason="WorkerFailed", cause=BADLY)
            for index in range(MAX_ATTEMPTS + 5)
        ],
    )


@pytest.mark.parametrize("nodes", [1, MAX_NODES])
def test_the_fullest_status_of_the_largest_job_fits_with_every_member(nodes):
    full = fullest(nodes)
    kept = bounded(full)
    assert len(msgspec.json.encode(full, enc_hook=values.encode)) > MAX_STATUS_BYTES
    assert len(msgspec.json.encode(kept, enc_hook=values.encode)) <= MAX_STATUS_BYTES
    assert kept.rendezvous == full.rendezvous
    assert [each.round for each in kept.attempts] == [each.round for each in full.attempts[-MAX_ATTEMPTS:]]
    assert kept.conditions == full.conditions


def test_what_fits_is_left_as_it_is():
    small = msgspec.structs.replace(fullest(4), attempts=[Attempt(round=1, cause=BADLY)])
    assert bounded(small) == small
