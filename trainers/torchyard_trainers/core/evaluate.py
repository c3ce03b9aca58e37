"""Mode `eval`: measure the newest checkpoint without training or touching it."""

from pathlib import Path

from torchyard_trainers.core import commits, finish
from torchyard_trainers.core.checkpoint import read_newest
from torchyard_trainers.core.curves import say
from torchyard_trainers.core.exits import CheckpointError
from torchyard_trainers.core.loop import Run
from torchyard_trainers.core.shards import Shards, apply, capture, shards_for
from torchyard_trainers.core.workload import Session, Workload


def evaluate(work: Workload, session: Session, run: Run) -> dict[str, float]:
    """Load the newest readable checkpoint (of `checkpoint.resumeFrom`, else of the job's own folder) and evaluate it.

    Raises:
        CheckpointError: there is none.
    """
    reporter, module = session.reporter, session.parallel.module
    reporter.phase("restore")
    root = Path(run.config.checkpoint.resume_from or run.checkpoint_dir)
    optimizer = work.optimizer(module.parameters())

    def fill(storage: Shards, folder: Path) -> None:
        state = capture(module, optimizer, work.state())
        storage.load(state, folder)
        apply(module, optimizer, state)

    found = read_newest(root, session.world, shards_for(root, session.world), fill)
    if found.record is None:
        raise CheckpointError(
            f"trainer.mode: eval needs a checkpoint, but {root} holds none {found.skipped or ''}".rstrip()
        )
    step = found.record["step"]
    reporter.progress(step, step)
    reporter.phase("eval")
    metrics = work.evaluate(session)
    reporter.metrics(metrics)
    if session.world.leads:
        run.checkpoint_dir.mkdir(parents=True, exist_ok=True)
        if not (run.checkpoint_dir / "DONE").exists() and not commits.candidates(run.checkpoint_dir):
            finish.mark_done(run.checkpoint_dir, step, metrics)
        numbers = "  ".join(f"{name}={value:.4g}" for name, value in metrics.items())
        say(f"evaluated {found.folder}: {numbers}")
    return metrics
