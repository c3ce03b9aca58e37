"""Saving beside training: what is written is the state as it was, and how it ended is reported when all ranks ask."""

import errno
import threading

import pytest
import torch
from tests.support.waiting import DEADLINE

from torchyard_trainers.core.checkpoints import commits
from torchyard_trainers.core.checkpoints.cadence import Cadence
from torchyard_trainers.core.checkpoints.checkpoint import Checkpoints
from torchyard_trainers.core.checkpoints.saver import Saver
from torchyard_trainers.core.checkpoints.shards import DcpShards
from torchyard_trainers.core.config import Checkpoint
from torchyard_trainers.core.exits import SupersededError
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.world import World

WORLD = World(0, 1, 0, torch.device("cpu"), grouped=False)


class SlowVolume(DcpShards):
    """A volume that takes until `go` to write, or breaks."""

    def __init__(self):
        super().__init__(WORLD)
        self.go = threading.Event()
        self.error = None

    def save(self, state, folder):
        assert self.go.wait(DEADLINE)
        if self.error is not None:
            raise self.error
        super().save(state, folder)


@pytest.fixture
def volume():
    return SlowVolume()


@pytest.fixture
def saver(tmp_path, volume):
    checkpoints = Checkpoints(tmp_path, WORLD, round_number=1, job="job", shards=volume)
    reporter = Reporter(None, rank=0, local_rank=0, round_number=1)
    return Saver(checkpoints, Checkpoint(keep_last=3), Cadence(None, now=0.0), reporter, WORLD.device)


def saved_weights(root, step):
    state = {"weights": torch.zeros(8)}
    DcpShards(WORLD).load(state, commits.step_folder(root, step) / "dcp")
    return state["weights"].tolist()


def test_training_continues_while_a_save_is_written_and_does_not_change_it(saver, volume, tmp_path):
    weights = torch.ones(8)
    saver.begin(1, {"weights": weights}, {"step": 1, "score": None})
    weights.fill_(2.0)  # the next step
    assert not saver.ended
    assert commits.candidates(tmp_path) == []
    volume.go.set()
    saver.wait()
    assert saved_weights(tmp_path, 1) == [1.0] * 8


def test_copies_are_made_again_for_each_save(saver, volume, tmp_path):
    volume.go.set()
    weights = torch.zeros(8)
    for step in (1, 2, 3):
        weights.fill_(float(step))
        saver.begin(step, {"weights": weights}, {"step": step, "score": None})
        weights.fill_(-1.0)
    saver.wait()
    assert [saved_weights(tmp_path, step)[0] for step in (1, 2, 3)] == [1.0, 2.0, 3.0]


def test_a_finished_save_is_reported_once_with_what_it_cost(saver, volume):
    volume.go.set()
    saver.begin(7, {"weights": torch.ones(8)}, {"step": 7, "score": None})
    assert "checkpoint" not in saver._reporter.facts
    saver.wait()
    told = saver._reporter.facts["checkpoint"]
    assert told["step"] == 7
    assert told["saveSeconds"] > 0
    assert told["stallSeconds"] > 0
    saver.wait()
    assert not saver.ended


def test_an_error_waits_until_all_ranks_settle_and_ends_the_run_then(saver, volume):
    volume.error = SupersededError("a newer round owns the folder")
    volume.go.set()
    saver.begin(1, {"weights": torch.ones(8)}, {"step": 1, "score": None})
    with pytest.raises(SupersededError):
        saver.begin(2, {"weights": torch.ones(8)}, {"step": 2, "score": None})
    saver.wait()


def test_a_storage_error_that_passes_costs_nothing_but_time(saver, volume, tmp_path, monkeypatch):
    def repaired_meanwhile(_seconds):
        volume.error = None

    monkeypatch.setattr("torchyard_trainers.core.checkpoints.checkpoint.time.sleep", repaired_meanwhile)
    volume.error = OSError(errno.ESTALE, "Stale file handle")
    volume.go.set()
    saver.begin(1, {"weights": torch.ones(8)}, {"step": 1, "score": None})
    saver.wait()
    assert saved_weights(tmp_path, 1) == [1.0] * 8
