"""Whatever a user's program writes, the intake keeps its promises: no exception, bounded, finite, printable."""

import itertools
import json
import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchyard.agents import sanitize
from torchyard.agents.registry import AgentRegistry, decode
from torchyard.api.status import Batch
from torchyard.reconcile.observed import Failure, GpuReport, RankReport, RoundExit

UNPRINTABLE = frozenset(map(chr, (*range(9), *range(11, 32), 127, 0x9B)))

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=50)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=20,
)


def shaped(struct):
    """Documents with the right names and any values at all."""
    names = [field.encode_name for field in msgspec.structs.fields(struct)]
    return st.dictionaries(st.sampled_from(names) | st.text(max_size=5), values, max_size=len(names))


def written(document):
    """As it arrives: agents write no NaN."""
    return msgspec.Raw(msgspec.json.encode(document))


def read_back(document):
    return msgspec.json.decode(msgspec.json.encode(document))


def check(value):
    if isinstance(value, float):
        assert math.isfinite(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        assert abs(value) < 2**63
    elif isinstance(value, str):
        assert len(value) <= 2 * sanitize.MAX_LINE
        assert UNPRINTABLE.isdisjoint(value)
    elif isinstance(value, dict):
        for name, item in value.items():
            check(name)
            check(item)
    elif isinstance(value, list | tuple):
        assert len(value) <= sanitize.MAX_REPORTS
        for item in value:
            check(item)


@settings(max_examples=300)
@given(values | shaped(RankReport))
def test_any_report(document):
    read = sanitize.report(document)
    check(msgspec.to_builtins(read))
    if read is not None:
        assert len(read.metrics) <= 32
        assert msgspec.json.decode(msgspec.json.encode(read), type=RankReport) == read


@settings(max_examples=300)
@given(values | st.builds(lambda exit_, failure: exit_ | {"failure": failure}, shaped(RoundExit), shaped(Failure)))
def test_any_exit(document):
    check(msgspec.to_builtins(sanitize.round_exit(document)))


@settings(max_examples=100)
@given(st.lists(values | shaped(GpuReport), max_size=80))
def test_any_gpus_and_notices(documents):
    raw = [written(document) for document in documents]
    check(msgspec.to_builtins(sanitize.gpus(raw)))
    check(msgspec.to_builtins(sanitize.reports(raw)))
    check(msgspec.to_builtins(sanitize.notices(documents)))


def nearly(**usual):
    """Documents as they should be, a few values apart."""
    return st.dictionaries(st.sampled_from(sorted(usual)), values | st.text(), max_size=2).map(lambda odd: usual | odd)


@settings(max_examples=300)
@given(
    nearly(
        round=1, rank=0, step=3, localRank=0, counter=8, time=1.5, totalSteps=10, epoch=0.5, phase="step",
        phaseSince=1.0, metrics={"loss": 1}, throughput={"stepsPerSecond": 3.5}, warnings=["hot"],
        nonFiniteMetrics={"gain": {"value": "NaN", "step": 2}},
        checkpoint={"step": 2, "time": 1.0, "path": "/checkpoints", "bytes": 10, "saveSeconds": 0.1},
        batch={"perProcess": 4, "global": 8, "accumulation": 2},
    )
)  # fmt: skip
def test_a_report_read_in_one_go_is_what_sanitising_makes_of_it(document):
    quick = sanitize.well_formed_report(written(document))
    assert quick is None or quick == sanitize.report(read_back(document))


@settings(max_examples=300)
@given(
    nearly(
        uuid="GPU-1", index=0, product="NVIDIA H200", memoryTotalBytes=1, memoryUsedBytes=1,
        utilization=97.0, temperatureC=61.0, powerW=640.5,
    )
)  # fmt: skip
def test_a_gpu_read_in_one_go_is_what_sanitising_makes_of_it(document):
    quick = sanitize.well_formed_gpu(written(document))
    assert quick is None or quick == sanitize.gpu(read_back(document))


@pytest.mark.parametrize("wrong", [{"global": None}, {"accumulation": -1}, {"perProcess": "4"}, {"perProcess": True}])
def test_a_batch_is_read_whole_or_not_at_all(wrong):
    right = {"perProcess": 4, "global": 8, "accumulation": 2}
    assert sanitize.batch(right) == Batch(per_process=4, whole=8, accumulation=2)
    assert sanitize.batch(right | wrong) is None


def test_what_our_own_programs_write_is_read_in_one_go():
    report = {"round": 1, "rank": 0, "step": 3, "phase": "step", "metrics": {"loss": 1.9}, "epoch": None}
    assert sanitize.well_formed_report(written(report)) is not None
    assert sanitize.well_formed_gpu(written({"uuid": "GPU-1", "utilization": None})) is not None
    assert sanitize.well_formed_report(written(report | {"phase": "st\x1bep"})) is None


def test_a_report_that_is_not_json_is_dropped_alone():
    good = {"round": 1, "rank": 0, "step": 3}
    (read,) = sanitize.reports([msgspec.Raw(b'{"round": 1e999}'), msgspec.Raw(b'"\xff"'), written(good)])
    assert read.step == 3


def test_a_well_formed_exit_is_read_word_for_word():
    document = {
        "round": 3, "code": 137, "saved": False, "asked": True, "time": 1763705999.9,
        "failure": {
            "rank": 1, "localRank": 0, "pid": 4711, "code": 137, "exception": None, "message": "killed by SIGKILL",
            "time": 1763705999.8, "secondary": False, "phase": "step", "step": 12,
            "nextMicroBatch": 16, "outOfMemory": True,
        },
        "lines": ["step 12", "loss 0.3"],
    }  # fmt: skip
    read = sanitize.round_exit(json.loads(json.dumps(document)))
    assert (read.round, read.code, read.saved, read.asked, read.time) == (3, 137, False, True, 1763705999.9)
    assert read.lines == ("step 12", "loss 0.3")
    assert read.failure == Failure(
        rank=1, local_rank=0, pid=4711, code=137, message="killed by SIGKILL", time=1763705999.8, phase="step", step=12,
        next_micro_batch=16, out_of_memory=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("written", "only"),
    [
        ({"message": "exit code 3"}, True),
        ({"message": "exit code 127 (of a shell: a command was not found)"}, True),
        ({"message": "exit code 3", "exception": "SystemError"}, False),
        ({"message": "killed by SIGKILL"}, False),
        ({"message": "exit code 3", "exitCodeOnly": False}, False),  # in the program's own words
    ],
)
def test_a_failure_of_an_earlier_agent_that_describes_an_exit_code_has_no_other_evidence(written, only):
    read = sanitize.round_exit({"round": 1, "code": 3, "time": 1.0, "failure": written})
    assert read.failure.exit_code_only is only


def test_colours_leave_nothing_of_themselves_behind():
    assert sanitize.line("\x1b[31mrank three\x1b[0m hates \x1b]8;;http://x\x07this") == "rank three hates this"


ODD = [
    1e308,
    -1e308,
    5e-324,
    2**53,
    2**63,
    2**64,
    -1,
    -0.0,
    1.5,
    True,
    None,
    "",
    "x",
    "\x1b[2J",
    [],
    [[]],
    {},
    {"step": 1e308},
]
WHOLE = {
    "protocol": 1, "instance": "i", "sequence": 1, "state": "running", "time": 1.0, "wait": 0, "revision": 0,
    "round": 1, "address": "10.0.0.1", "masterPort": 1, "procs": 1, "notices": ["a"],
    "exit": {"round": 1, "code": 1, "time": 1.0, "lines": ["a"], "failure": {"rank": 0, "step": 1, "pid": 2}},
    "reports": [{
        "round": 1, "rank": 0, "step": 1, "counter": 1, "totalSteps": 2, "epoch": 0.5, "metrics": {"loss": 1.0},
        "throughput": {"x": 1.0}, "phase": "step", "checkpoint": {"step": 1, "bytes": 1, "time": 1.0, "path": "/a"},
        "warnings": ["a"], "artifacts": [{"name": "a", "bytes": 1, "verified": True}],
    }],
    "requirements": {"state": "installing", "packages": 3, "message": "c"},
    "inputs": [{"name": "a", "state": "ready", "revision": "b", "bytes": 1, "totalBytes": 2, "message": "c"}],
    "gpus": [{"index": 0, "uuid": "a", "memoryTotalBytes": 1, "utilization": 1.0}],
}  # fmt: skip


def leaves(value, path=()):
    yield path
    for key, child in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from leaves(child, (*path, key))


def replaced(value, path, odd):
    if not path:
        return odd
    copied = value.copy()
    copied[path[0]] = replaced(value[path[0]], path[1:], odd)
    return copied


def test_an_odd_value_anywhere_in_a_message_is_refused_or_taken_in_and_never_raises():
    registry = AgentRegistry(lambda: 1.0, interval=1.0, on_news=lambda _uid: None)
    taken = refused = 0
    for number, (path, odd) in enumerate(itertools.product(leaves(WHOLE), ODD)):
        try:
            request = decode(msgspec.json.encode(replaced(WHOLE, path, odd)))
        except ValueError:
            refused += 1
            continue
        pod = f"pod-{number}"
        registry.record(pod, request)
        check(msgspec.to_builtins(registry.of([pod])[pod]))
        assert registry.answer(pod)
        taken += 1
    assert taken > 500
    assert refused > 100
