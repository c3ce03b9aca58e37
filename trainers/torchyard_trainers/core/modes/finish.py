"""The end of a mode that only reads: DONE in an own folder, nothing in the folder of a run."""

from collections.abc import Mapping
from pathlib import Path

from torchyard_trainers.core import finish
from torchyard_trainers.core.checkpoints import commits
from torchyard_trainers.core.loop import Run


def is_a_runs(root: Path) -> bool:
    """Whether a checkpoint folder belongs to a training run: a mode that only reads then writes nothing there."""
    return (root / "run.json").exists() or bool(commits.candidates(root))


def finish_reading(run: Run, step: int, metrics: Mapping[str, float]) -> None:
    """Write DONE with the metrics, unless the folder belongs to a run: its DONE describes its training."""
    root = run.checkpoint_dir
    if not run.world.is_main:
        return
    root.mkdir(parents=True, exist_ok=True)
    if not is_a_runs(root):
        finish.mark_done(root, step, metrics)
