"""Checkpoints of one process on a real folder: what is kept, and what a gang left behind can do to it."""

import errno
import os
import shutil

import pytest
import torch

from torchyard_trainers.core.checkpoints import commits
from torchyard_trainers.core.checkpoints.checkpoint import Checkpoints
from torchyard_trainers.core.checkpoints.shards import DcpShards
from torchyard_trainers.core.exits import SupersededError
from torchyard_trainers.core.world import World

WORLD = World(0, 1, 0, torch.device("cpu"), grouped=False)


def owner(root, round_number=1):
    return Checkpoints(root, WORLD, round_number=round_number, job="job")


def save(checkpoints, step, *, keep=3):
    return checkpoints.save(step, {"weights": torch.full((64,), float(step))}, {"step": step}, keep=keep)


def restore(checkpoints):
    state = {"weights": torch.zeros(64)}
    found = checkpoints.restore(lambda shards, folder: shards.load(state, folder))
    return found, state["weights"][0].item()


def flip_a_bit(root, step):
    shard = next((commits.step_folder(root, step) / "dcp").glob("*.bin"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)


def test_checkpoints_saved_after_a_damaged_one_are_kept_and_it_is_deleted(tmp_path):
    first = owner(tmp_path)
    save(first, 800)
    save(first, 900)
    flip_a_bit(tmp_path, 900)
    second = owner(tmp_path, 2)
    found, weight = restore(second)
    assert (found.record["step"], weight) == (800, 800.0)
    assert "step-00000900" in found.skipped[0]
    save(second, 850, keep=1)
    found, weight = restore(owner(tmp_path, 3))
    assert (found.record["step"], weight, found.folder.name) == (850, 850.0, "step-00000850")
    assert [step.step for step in commits.candidates(tmp_path) if step.committed] == [850]


def test_a_checkpoint_that_the_volume_does_not_give_for_a_moment_is_not_lost(tmp_path, monkeypatch):
    first = owner(tmp_path)
    save(first, 100)
    save(first, 200)
    with monkeypatch.context() as patch:
        patch.setattr(commits, "read_commit", lambda _folder: (_ for _ in ()).throw(OSError(errno.ESTALE, "Stale")))
        with pytest.raises(OSError, match="Stale"):
            restore(owner(tmp_path, 2))
    assert restore(owner(tmp_path, 3))[1] == 200.0


@pytest.mark.parametrize("keep", [1, 3])
def test_a_run_keeps_its_newest_checkpoints(tmp_path, keep):
    checkpoints = owner(tmp_path)
    for step in (1, 2, 3, 4):
        save(checkpoints, step, keep=keep)
    assert [step.step for step in commits.candidates(tmp_path)] == [4, 3, 2, 1][:keep]


@pytest.mark.parametrize("broken", ["step-00000001", "latest"])
def test_a_committed_checkpoint_stays_when_deleting_older_ones_fails(tmp_path, monkeypatch, broken):
    checkpoints, removed = owner(tmp_path), []
    for step in (1, 2):
        save(checkpoints, step)

    def refusing(act):
        def acted(path, *more):
            if path.name == broken:
                raise OSError(errno.EIO, "I/O error")
            removed.extend([path.name] if act is remove and path.exists() else [])
            act(path, *more)

        return acted

    remove, write = commits.remove, commits.write_atomically
    monkeypatch.setattr(commits, "remove", refusing(remove))
    monkeypatch.setattr(commits, "write_atomically", refusing(write))
    saved = save(checkpoints, 3, keep=1)
    assert (saved.step, "I/O error" in saved.untidy) == (3, True)
    assert "step-00000003" not in removed
    assert restore(owner(tmp_path, 2))[1] == 3.0


def test_leftovers_of_a_killed_write_are_deleted_and_a_file_being_written_stays(tmp_path):
    save(owner(tmp_path), 1)
    for name in (".latest.4711", ".run.json.4711"):
        (tmp_path / name).write_text("half")
        os.utime(tmp_path / name, (1, 1))
    (tmp_path / ".notes").write_text("somebody's own")
    os.utime(tmp_path / ".notes", (1, 1))
    after = owner(tmp_path, 2)
    (tmp_path / ".round.lock.4712").write_text("3 job")  # of a round that takes over just now
    after.sweep()
    assert sorted(path.name for path in tmp_path.glob(".*")) == [".notes", ".round.lock.4712"]


def test_a_folder_that_is_deleted_under_a_run_is_made_again_with_the_next_save(tmp_path):
    root = tmp_path / "checkpoints"
    checkpoints = owner(root)
    save(checkpoints, 100)
    shutil.rmtree(root)
    save(checkpoints, 200)
    found, weight = restore(owner(root, 2))
    assert (found.record["step"], weight) == (200, 200.0)


class CutOff(DcpShards):
    """Storage of a gang that is cut off after its first fence; `event` is what happens until it comes back."""

    def __init__(self, event):
        super().__init__(WORLD)
        self.event = event

    def save(self, state, folder):
        self.event()
        super().save(state, folder)


def test_a_gang_that_was_cut_off_cannot_write_into_the_checkpoint_of_its_successor(tmp_path):
    def successor_saves_the_same_step():
        save(owner(tmp_path, 2), 5)

    stale = Checkpoints(tmp_path, WORLD, round_number=1, job="job", shards=CutOff(successor_saves_the_same_step))
    with pytest.raises(SupersededError):
        stale.save(5, {"weights": torch.full((64,), -1.0)}, {"step": 5}, keep=3)
    found, weight = restore(owner(tmp_path, 3))
    assert (weight, found.skipped) == (5.0, [])


@pytest.mark.parametrize("when", ["save", "written_by"])
def test_a_gang_whose_unfinished_save_was_deleted_names_the_round_that_did_it(tmp_path, when):
    """Frozen while it writes its shards, or once they are written and before they are sealed."""

    class Swept(DcpShards):
        def save(self, state, folder):
            if when == "save":
                owner(tmp_path, 2).sweep()
            (folder / "__0_0.bin").write_bytes(b"")

        def written_by(self, rank, folder):
            found = super().written_by(rank, folder)
            if when == "written_by":
                owner(tmp_path, 2).sweep()
            return found

    stale = Checkpoints(tmp_path, WORLD, round_number=1, job="job", shards=Swept(WORLD))
    with pytest.raises(SupersededError, match="round 2 took over"):
        stale.save(5, {}, {"step": 5}, keep=3)


def test_leftovers_of_a_killed_save_are_deleted_but_not_files_of_a_newer_round(tmp_path):
    def killed():
        raise KeyboardInterrupt

    def unfinished():
        return {path.name.split(".")[2] for path in tmp_path.glob(".step-*")}

    for round_number in (1, 3):
        with pytest.raises(KeyboardInterrupt):
            Checkpoints(tmp_path, WORLD, round_number=round_number, job="job", shards=CutOff(killed)).save(
                5, {}, {}, keep=3
            )
    assert unfinished() == {"round-1", "round-3"}
    assert commits.candidates(tmp_path) == []
    commits.sweep(tmp_path, 2, "job")
    assert unfinished() == {"round-3"}
    owner(tmp_path, 4).sweep()
    assert unfinished() == set()


def test_a_checkpoint_that_another_round_committed_is_not_replaced(tmp_path):
    save(owner(tmp_path), 5)
    late = commits.unfinished_folder(tmp_path, 5, 2, "job")
    (late / "dcp").mkdir(parents=True)
    with pytest.raises(SupersededError, match="another round has written"):
        commits.publish(late, commits.step_folder(tmp_path, 5))
    assert restore(owner(tmp_path, 3))[1] == 5.0


def test_numbers_text_and_lists_beside_tensors_are_read(tmp_path):
    kept = {"lr": 1e-3, "name": "adam", "betas": (0.9, 0.999), "none": None, "on": True, "half": torch.ones(3).half()}
    shards = DcpShards(WORLD)
    shards.save(kept, tmp_path)
    read = {**kept, "lr": 0.0, "name": "", "betas": (0.0, 0.0), "on": False, "half": torch.zeros(3).half()}
    shards.load(read, tmp_path)
    assert torch.equal(read.pop("half"), kept.pop("half"))
    assert read == kept
