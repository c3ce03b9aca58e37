"""Checkpoints of one process on a real folder: what is kept, and what a gang left behind can do to it."""

import pytest
import torch

from torchyard_trainers.core import commits
from torchyard_trainers.core.checkpoint import Checkpoints
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
    shard = next((commits.step_folder(root, step) / "dcp").glob("*.distcp"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)


def test_what_is_saved_after_a_damaged_checkpoint_outlives_it(tmp_path):
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


@pytest.mark.parametrize("keep", [1, 3])
def test_a_run_keeps_its_newest_checkpoints(tmp_path, keep):
    checkpoints = owner(tmp_path)
    for step in (1, 2, 3, 4):
        save(checkpoints, step, keep=keep)
    assert [step.step for step in commits.candidates(tmp_path)] == [4, 3, 2, 1][:keep]
