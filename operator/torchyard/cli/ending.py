"""The end of a job in this terminal: its exit code, and the last words of `run`."""

from torchyard.api.exits import EXITS
from torchyard.api.resource import TrainingJob
from torchyard.cli.errors import FAILED, INVALID, STOPPED, SUCCEEDED
from torchyard.cli.picture import OPTIMIZER_METRICS, headline, progress_words
from torchyard.cli.words import clean
from torchyard.cluster.local.folder import RunFolder

MAX_LINES = 20


def exit_code(job: TrainingJob) -> int:
    """0 succeeded, 64 the workload refused its configuration, 75 suspended, 1 anything else.

    What only the workload can know to be wrong is the user's mistake as much as what is seen before a start.
    """
    state = job.status.state
    if state == "Failed" and job.status.reason == EXITS[INVALID].reason:
        return INVALID
    return {"Succeeded": SUCCEEDED, "Suspended": STOPPED}.get(state, FAILED)


def ending(job: TrainingJob, folder: RunFolder) -> list[str]:
    """Lines for stderr after the view is closed."""
    name, state = job.metadata.name, job.status.state
    if state == "Succeeded":
        told = " ".join(
            [
                *progress_words(job),
                *(f"{clean(key)} {value}" for key, value in headline(job).items() if key not in OPTIMIZER_METRICS),
            ]
        )
        kept = folder.checkpoints.is_dir() and any(folder.checkpoints.iterdir())
        return [
            f"{name} succeeded" + (f": {told}" if told else ""),
            *([f"checkpoints and results: {folder.checkpoints}"] if kept else []),
        ]
    if state == "Suspended":
        at = f" at step {job.status.checkpoint.step}" if job.status.checkpoint is not None else ""
        return [f"{name} is stopped, newest checkpoint{at}; `torchyard resume {name}` goes on" if at else
                f"{name} is stopped; `torchyard resume {name}` goes on"]  # fmt: skip
    if state == "Failed":
        return [
            f"{name} failed: {clean(job.status.message)}",
            *last_lines(job),
            f"more: `torchyard status {name}`, `torchyard logs {name}`",
        ]
    if not folder.path.exists():
        return [f"{name} was deleted while it ran"]
    return [f"{name} is not controlled any more; `torchyard resume {name}` goes on"]


def last_lines(job: TrainingJob) -> list[str]:
    """What the rank that failed first said last. One that saved as it was asked to did not fail."""
    for attempt in reversed(job.status.attempts):
        if attempt.cause is not None and attempt.cause.lines and attempt.cause.class_ != "Preempted":
            who = f"rank {attempt.cause.rank}" if attempt.cause.rank is not None else "the failing rank"
            lines = [f"  {clean(line)}" for line in attempt.cause.lines[-MAX_LINES:]]
            return [f"last lines of {who}, round {attempt.round}:", *lines]
    return []
