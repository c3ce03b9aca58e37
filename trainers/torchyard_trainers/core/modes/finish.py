"""How a mode that only reads ends: DONE in a folder of its own, nothing in one that holds a run."""

from collections.abc import Mapping
from pathlib import Path

from torchyard_trainers.core import finish
from torchyard_trainers.core.checkpoints import commits
from torchyard_trainers.core.loop import Run


def is_a_runs(root: Path) -> bool:
    """Whether a checkpoint folder holds a run that trained: then nobody who only reads leaves anything in it."""
    return (root / "run.json").exists() or bool(commits.candidates(root))


def finish_reading(run: Run, step: int, metrics: Mapping[str, float]) -> None:
    """Write DONE with the metrics where no run is: a run's own DONE says what it was trained to."""
    root = run.checkpoint_dir
    if not run.world.is_main:
        return
    root.mkdir(parents=True, exist_ok=True)
    if not is_a_runs(root):
        finish.mark_done(root, step, metrics)
