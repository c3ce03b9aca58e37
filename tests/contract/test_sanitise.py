"""Whatever a user's program writes, the intake keeps its promises: no exception, bounded, finite, printable."""

import json
import math

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from torchyard.engine.view import Failure, GpuReport, RankReport, RoundExit
from torchyard.intake import sanitise

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


def check(value):
    if isinstance(value, float):
        assert math.isfinite(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        assert abs(value) < 2**63
    elif isinstance(value, str):
        assert len(value) <= sanitise.MAX_TRACEBACK
        assert not set(value) & {chr(code) for code in (*range(9), *range(11, 32), 127, 0x9B)}
    elif isinstance(value, dict):
        for name, item in value.items():
            check(name)
            check(item)
    elif isinstance(value, list | tuple):
        assert len(value) <= sanitise.MAX_REPORTS
        for item in value:
            check(item)


@settings(max_examples=300, deadline=None)
@given(values | shaped(RankReport))
def test_any_report(document):
    read = sanitise.report(document)
    check(msgspec.to_builtins(read))
    if read is not None:
        assert len(read.metrics) <= 32
        assert msgspec.json.decode(msgspec.json.encode(read), type=RankReport) == read


@settings(max_examples=300, deadline=None)
@given(
    values | shaped(RoundExit).flatmap(lambda exit_: shaped(Failure).map(lambda failure: exit_ | {"failure": failure}))
)
def test_any_exit(document):
    check(msgspec.to_builtins(sanitise.round_exit(document)))


@settings(max_examples=100, deadline=None)
@given(st.lists(values | shaped(GpuReport), max_size=80))
def test_any_gpus_and_notices(documents):
    check(msgspec.to_builtins(sanitise.gpus(documents)))
    check(msgspec.to_builtins(sanitise.notices(documents)))
    check(msgspec.to_builtins(sanitise.reports(documents)))


def test_a_well_formed_exit_is_read_word_for_word():
    document = {
        "round": 3, "code": 137, "saved": False, "asked": True, "time": 1763705999.9,
        "failure": {
            "rank": 1, "localRank": 0, "pid": 4711, "code": 137, "exception": None, "message": "killed by SIGKILL",
            "traceback": "", "time": 1763705999.8, "secondary": False, "phase": "step", "step": 12,
            "nextMicroBatch": 16,
        },
        "lines": ["step 12", "loss 0.3"],
    }  # fmt: skip
    read = sanitise.round_exit(json.loads(json.dumps(document)))
    assert (read.round, read.code, read.saved, read.asked, read.time) == (3, 137, False, True, 1763705999.9)
    assert read.lines == ("step 12", "loss 0.3")
    assert read.failure == Failure(
        rank=1, local_rank=0, pid=4711, code=137, message="killed by SIGKILL", time=1763705999.8, phase="step", step=12,
        next_micro_batch=16,
    )  # fmt: skip
