"""Being asked to stop: a flag file in, a marker file out.

SIGTERM keeps its default action, so that a worker whose peer is lost ends at once.
"""

from pathlib import Path
from typing import NoReturn

from torchyard_trainers.core.exits import PreemptedError
from torchyard_trainers.core.world import World


def requested(run_dir: Path | None) -> bool:
    """Whether the agent wants everything saved; ranks see it at different times and agree in the step's reduction."""
    return run_dir is not None and (run_dir / "preempt").exists()


def stop(run_dir: Path | None, world: World, step: int, total_steps: int) -> NoReturn:
    """Record for the agent that this rank is part of the checkpoint of `step`, and end the round. Collective.

    Raises:
        PreemptedError: always.
    """
    if run_dir is not None:
        (run_dir / f"saved.{world.rank}").write_text(f"{step}\n")
    world.barrier()
    raise PreemptedError(f"asked to stop: step {step} of {total_steps} is saved")
