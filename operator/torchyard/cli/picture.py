"""What a view shows of a run at one moment: frozen, so that drawing it is a pure function."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from torchyard.api import times
from torchyard.api.figures import figure, span
from torchyard.api.resource import TrainingJob

if TYPE_CHECKING:
    from torchyard.cli.curve import Point
    from torchyard.cli.ranks import Rank
    from torchyard.cluster.local.run import Event

OPTIMIZER_METRICS = {"gradNorm", "learningRate"}


class Picture(NamedTuple):
    """A run at the moment `now` (unix seconds)."""

    job: TrainingJob
    now: float
    ranks: "Sequence[Rank]" = ()
    losses: "Sequence[Point]" = ()
    events: "Sequence[Event]" = ()
    notice: str = ""  # what the program itself has to say, for instance after Ctrl-C


def unix(timestamp: str | None) -> float | None:
    """Unix seconds of an RFC 3339 time; None without one or when it is something else."""
    try:
        return times.unix(timestamp) if timestamp else None
    except ValueError:
        return None


def age(job: TrainingJob, now: float) -> float | None:
    """Seconds from the job's start (or creation) to its end or now."""
    start = unix(job.status.start_time) or unix(job.metadata.creation_timestamp)
    if start is None:
        return None
    return max(0.0, (unix(job.status.completion_time) or now) - start)


def interrupted(job: TrainingJob, controlled: bool) -> bool:
    """Whether the run should be going on but its controlling process is gone."""
    return not controlled and job.status.state not in {"Succeeded", "Failed", "Suspended"}


def state_word(job: TrainingJob, controlled: bool) -> str:
    """The state as people read it: a status that nobody writes any more is not believed."""
    return "Interrupted" if interrupted(job, controlled) else job.status.state or "Pending"


def progress_words(job: TrainingJob, controlled: bool = True) -> list[str]:
    """Step, share, epoch, loss, rate and time left, those that are known: `step 120/1000`, `12%`, `loss 1.93` ..."""
    progress, status = job.status.progress, job.status
    words: list[str] = []
    if progress.step or progress.total_steps:
        total = f"/{progress.total_steps}" if progress.total_steps else ""
        words.append(f"step {progress.step}{total}")
    if progress.percent is not None:
        words.append(f"{progress.percent:.0f}%")
    if progress.epoch:
        words.append(f"epoch {progress.epoch:.1f}")
    if "loss" in status.metrics:
        words.append(f"loss {figure(status.metrics['loss'])}")
    if status.throughput.steps_per_second is not None:
        words.append(f"{figure(status.throughput.steps_per_second)} step/s")
    if progress.eta_seconds is not None and state_word(job, controlled) == "Running":
        words.append(f"eta {span(progress.eta_seconds)}")
    return words


def headline(job: TrainingJob) -> dict[str, str]:
    """The metrics besides the loss as they are read, in an order that stays: the optimizer's come last."""
    names = sorted(job.status.metrics.keys() - {"loss"}, key=lambda name: (name in OPTIMIZER_METRICS, name))
    return {name: figure(job.status.metrics[name]) for name in names}
