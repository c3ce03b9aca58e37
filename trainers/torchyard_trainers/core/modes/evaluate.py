"""Mode `eval`: evaluate a checkpoint without training or changing it."""

from torchyard_trainers.core.loop import Run
from torchyard_trainers.core.metrics.curves import say
from torchyard_trainers.core.modes.finish import finish_reading, is_a_runs
from torchyard_trainers.core.modes.load import load_chosen
from torchyard_trainers.core.workload import Session, Workload, write_report


def evaluate(work: Workload, session: Session, run: Run) -> dict[str, float]:
    """Evaluate the chosen checkpoint; the metrics go to the report and, on rank 0, to stdout.

    Raises:
        CheckpointError: there is no checkpoint.
    """
    record, folder = load_chosen(work, session, run)
    session.reporter.phase("eval")
    metrics = work.evaluate(session)
    session.reporter.metrics(metrics)
    root = run.checkpoint_dir
    if not session.world.from_leader(lambda: is_a_runs(root)):
        write_report(work, session, root / "evaluation", root / "metrics.jsonl")
    finish_reading(run, record["step"], metrics)
    if session.world.is_main:
        numbers = "  ".join(f"{name}={value:.4g}" for name, value in metrics.items())
        say(f"evaluated {folder}: {numbers}")
    return metrics
