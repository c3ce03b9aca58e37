"""Saves of one process, for tests that kill it: imported by the warm parent, so light."""

from pathlib import Path

import torch
from hold_points import die_at

from torchyard_trainers.core.checkpoints.checkpoint import Checkpoints
from torchyard_trainers.core.world import World

WORLD = World(0, 1, 0, torch.device("cpu"), grouped=False)


def owner(root: Path, round_number: int) -> Checkpoints:
    return Checkpoints(root, WORLD, round_number=round_number, job="job")


def save(root: Path, step: int, round_number: int) -> None:
    """Save a state whose every number is its step, and keep no other checkpoint."""
    state = {"weights": torch.full((64,), float(step)), "bias": torch.full((3,), float(step))}
    owner(root, round_number).save(step, state, {"step": step}, keep=1)


def save_and_die(root: str, number: int) -> None:
    """Save step 2, and die before the `number`th operation on files."""
    die_at(number, Path(root))
    save(Path(root), 2, 1)
