"""How a mode that only reads ends: DONE in a folder of its own, nothing in one that holds a run."""

from collections.abc import Mapping

from torchyard_trainers.core import commits, finish
from torchyard_trainers.core.loop import Run


def finish_reading(run: Run, step: int, metrics: Mapping[str, float]) -> None:
    """Write DONE with the metrics where no run is: a run's own DONE says what it was trained to."""
    root = run.checkpoint_dir
    if not run.world.leads:
        return
    root.mkdir(parents=True, exist_ok=True)
    if not (root / "DONE").exists() and not commits.candidates(root):
        finish.mark_done(root, step, metrics)
