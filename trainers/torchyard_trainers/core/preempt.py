"""Being asked to stop: a flag file in, a marker file out.

SIGTERM keeps its default action, so that a worker whose peer is lost ends at once.
"""

from pathlib import Path


def requested(run_dir: Path | None) -> bool:
    """Whether the agent wants everything saved; ranks see it at different times and agree in the step's reduction."""
    return run_dir is not None and (run_dir / "preempt").exists()


def mark_saved(run_dir: Path | None, rank: int, step: int) -> None:
    """Record for the agent that this rank is part of a committed checkpoint."""
    if run_dir is not None:
        (run_dir / f"saved.{rank}").write_text(f"{step}\n")
