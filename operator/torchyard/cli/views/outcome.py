"""The end of a job in this terminal: its exit code, and the last words of `run`."""

from collections.abc import Sequence
from pathlib import Path

from torchyard.api.formatting import addressed, clean
from torchyard.api.resource import TrainingJob
from torchyard.api.status import State
from torchyard.api.values import size
from torchyard.cli.errors import FAILED, INVALID, STOPPED, SUCCEEDED
from torchyard.cli.views.snapshot import learned
from torchyard.client.artifacts import EXPORT, Artifact, artifacts_of
from torchyard.client.explanation import last_lines
from torchyard.local.run import RunFolder

MAX_WRITTEN = 8
RECORDS = {"DONE", "latest", "micro-batch.json", "environment.json"}
"""What TorchYard keeps in a checkpoint folder for itself: no result of the program."""


def exit_code(job: TrainingJob) -> int:
    """0 succeeded, 64 the workload rejected its configuration, 75 suspended, 1 anything else.

    What only the workload can know to be wrong is the user's mistake as much as what is seen before a start.
    """
    state = job.status.state
    if state == State.FAILED and job.status.exit_code == INVALID:
        return INVALID
    return {State.SUCCEEDED: SUCCEEDED, State.SUSPENDED: STOPPED}.get(state, FAILED)


def outcome_of(job: TrainingJob, folder: RunFolder) -> list[str]:
    """Lines for stderr after the view is closed."""
    name, state = job.metadata.name, job.status.state
    if state == State.SUCCEEDED:
        results = (one for one in artifacts_of(folder.checkpoints) if one.path not in RECORDS)
        made = sorted(results, key=lambda one: (_rank(one), one.path))
        following = f"torchyard fetch {name} {made[0].path}" if made else f"torchyard logs {name}"
        return [learned(job), *written(made, folder.checkpoints), f"next: {following}"]
    if state == State.SUSPENDED:
        at = f" at step {job.status.checkpoint.step}" if job.status.checkpoint is not None else ""
        return [f"{name} is stopped, newest checkpoint{at}; `torchyard resume {name}` continues it" if at else
                f"{name} is stopped; `torchyard resume {name}` continues it"]  # fmt: skip
    if state == State.FAILED:
        return [
            f"{name} failed: {addressed(clean(job.status.message), name)}",
            *last_lines(job),
            f"more: `torchyard status {name}`, `torchyard logs {name}`",
        ]
    if not folder.path.exists():
        return [f"{name} was deleted while it ran"]
    return [f"{name} is not controlled any more; `torchyard resume {name}` continues it"]


def _rank(one: Artifact) -> int:
    """Return how early something is named: what was made for others first, checkpoints of single steps last."""
    if one.path.startswith(f"{EXPORT}/"):
        return 0 if one.path.endswith("/web") else 1
    return 2 if one.path == "final" else 3


def written(made: Sequence[Artifact], root: Path) -> list[str]:
    """Return the line that names what a run has left in its checkpoint folder; none where that is nothing."""
    if not made:
        return []
    shown = [f"{clean(one.path)} ({size(one.bytes)})" for one in made[:MAX_WRITTEN]]
    more = [f"and {len(made) - MAX_WRITTEN} more"] if len(made) > MAX_WRITTEN else []
    return [f"written to {root}: {', '.join([*shown, *more])}"]
