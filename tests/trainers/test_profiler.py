"""Profiles on demand: written when asked for, once, by whom was asked; they change no step and stop no training."""

import gzip
import json
from contextlib import suppress

import pytest
import torch
from tests.support.trainers.gangs import config, until

from torchyard_trainers.core.exits import PreemptedError
from torchyard_trainers.core.profiler import REQUEST, Profiler
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.world import World


class Ranks:
    """Ranks of one pod between their steps."""

    def __init__(self, root):
        self.run_dir, self.folder = root / "run", root / "checkpoints"
        self.run_dir.mkdir()
        self.round(1)

    def round(self, number):
        self.reporters = [Reporter(None, rank=rank, local_rank=rank, round_number=number) for rank in range(2)]
        self.profilers = [
            Profiler(self.run_dir, self.folder, World(rank, 2, rank, torch.device("cpu"), grouped=False), reporter)
            for rank, reporter in enumerate(self.reporters)
        ]

    def wish(self, **wish):
        (self.run_dir / REQUEST).write_text(json.dumps(wish))

    def steps(self, numbers):
        for step in numbers:
            for rank, profiler in enumerate(self.profilers):
                with profiler.around(step), torch.profiler.record_function(f"step-{step}-of-{rank}"):
                    torch.ones(64, 64) @ torch.ones(64, 64)

    @property
    def written(self):
        return sorted(path.name for path in (self.folder / "profile").glob("*"))


@pytest.fixture
def ranks(tmp_path):
    return Ranks(tmp_path)


def test_a_trace_holds_the_steps_that_were_asked_for_and_no_others(ranks):
    ranks.steps([1])
    ranks.wish(id="a", kind="trace", steps=2, rank=1)
    ranks.steps([2, 3, 4])
    assert ranks.written == ["trace-00000003-rank-1.json.gz"]
    path = ranks.folder / "profile" / ranks.written[0]
    names = {event.get("name", "") for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]}
    assert {"step-2-of-1", "step-3-of-1", "aten::mm"} <= names
    assert not {"step-1-of-1", "step-4-of-1", "step-2-of-0"} & names
    assert [each["name"] for each in ranks.reporters[1].facts["artifacts"]] == [f"profile/{path.name}"]


def test_a_request_is_served_once_also_over_several_rounds(ranks):
    ranks.wish(id="a", kind="memory", steps=1)
    ranks.steps([1, 2])
    first = ranks.written
    assert first == ["memory-00000001-rank-0.json", "memory-00000001-rank-1.json"]
    ranks.round(2)
    ranks.steps([2, 3])
    assert ranks.written == first
    ranks.wish(id="b", kind="memory", steps=2)
    ranks.steps([4, 5])
    assert ranks.written[2:] == ["memory-00000005-rank-0.json", "memory-00000005-rank-1.json"]


def test_a_rank_that_is_not_asked_confirms_the_request_before_its_next_step(ranks):
    ranks.wish(id="a", kind="memory", steps=2, rank=1)
    ranks.steps([1])
    assert (ranks.run_dir / "profiled.0").read_text() == "a"
    assert not (ranks.run_dir / "profiled.1").exists()
    ranks.steps([2])
    assert (ranks.run_dir / "profiled.1").read_text() == "a"
    assert ranks.written == ["memory-00000002-rank-1.json"]


def test_a_memory_profile_names_the_large_tensors(ranks):
    held = [torch.zeros(1024, 1000) for _ in range(3)]
    ranks.wish(id="a", kind="memory", steps=1, rank=0)
    ranks.steps([1])
    found = json.loads((ranks.folder / "profile" / ranks.written[0]).read_text())
    assert {"device": "cpu", "dtype": "float32", "shape": [1024, 1000], "count": 3, "bytes": 3 * 4096000} in found[
        "tensors"
    ]
    assert found["peakBytes"] > found["tensorBytes"] >= len(held) * 4096000


@pytest.mark.parametrize("text", ["{", '{"id": "a", "kind": "flame"}', '{"id": "a", "kind": "trace", "steps": 100000}'])
def test_a_request_that_cannot_be_read_is_reported_once_and_training_goes_on(ranks, text):
    (ranks.run_dir / REQUEST).write_text(text)
    ranks.steps([1, 2])
    (warning,) = ranks.reporters[0].facts["warnings"]
    assert "profile.json" in warning


def test_a_full_disk_stops_no_training(ranks):
    ranks.folder.write_text("not a folder")
    ranks.wish(id="a", kind="trace", steps=1, rank=0)
    ranks.steps([1, 2])
    assert "trace profile of step 1" in ranks.reporters[0].facts["warnings"][0]


def test_a_run_that_ends_before_the_last_requested_step_writes_what_it_recorded(ranks):
    ranks.wish(id="a", kind="trace", steps=5, rank=0)
    with ranks.profilers[0]:
        ranks.steps([1, 2])
        assert ranks.written == []
    assert ranks.written == ["trace-00000002-rank-0.json.gz"]
    assert (ranks.run_dir / "profiled.0").read_text() == "a"


def test_a_run_that_stops_leaves_the_request_to_the_next_round(ranks):
    ranks.wish(id="a", kind="trace", steps=2, rank=0)
    with suppress(PreemptedError), ranks.profilers[0]:
        ranks.steps([1])
        raise PreemptedError("asked to stop")
    assert ranks.written == []
    ranks.round(2)
    ranks.steps([2, 3])
    assert ranks.written == ["trace-00000003-rank-0.json.gz"]


@pytest.mark.e2e
def test_a_request_for_more_steps_than_are_left_changes_no_exit_code(yard):
    (yard.root / "run-1").mkdir()
    (yard.root / "run-1" / REQUEST).write_text(json.dumps({"id": "x", "kind": "trace", "steps": 100}))
    yard.train(config(params={"steps": 3}))
    assert [path.name for path in (yard.checkpoints / "profile").iterdir()] == ["trace-00000003-rank-0.json.gz"]


@pytest.mark.e2e
def test_a_run_is_traced_while_it_trains_and_learns_the_same(yard):
    yard.train(config())
    expected = yard.weights()
    (yard.root / "checkpoints").rename(yard.root / "first")
    yard.rounds += 1
    yard.run_dir.mkdir()
    (yard.run_dir / REQUEST).write_text(json.dumps({"id": "x", "kind": "trace", "steps": 2}))
    yard.rounds -= 1
    yard.train(config())
    assert yard.weights() == expected
    (path,) = (yard.checkpoints / "profile").iterdir()
    assert until(path.exists)
    assert path.name == "trace-00000002-rank-0.json.gz"
    names = {event.get("name", "") for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]}
    assert any("Optimizer.step" in name for name in names)
