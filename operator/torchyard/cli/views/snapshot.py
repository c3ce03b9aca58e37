"""What a view shows of a run at one moment, and the view where there is no terminal.

A snapshot is frozen, so that drawing it is a pure function. The plain view prints one line for a change of state, for a
warning, and for progress every few seconds.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TextIO

from torchyard.api.formatting import addressed, clean
from torchyard.api.resource import TrainingJob
from torchyard.api.status import State, TrainingJobStatus, newest_values
from torchyard.api.values import clock, figure, measure, rate, span
from torchyard.local.run import Event

if TYPE_CHECKING:
    from torchyard.cli.views.curve import History, Point
    from torchyard.cli.views.program_output import OutputLine
    from torchyard.client.ranks import Rank
    from torchyard.local.run import Event

STATE_STYLES: dict[str, str] = {
    State.RUNNING: "bold green",
    State.SUCCEEDED: "bold green",
    State.FAILED: "bold red",
    State.RECOVERING: "bold yellow",
    State.QUEUED: "bold yellow",
    State.SUSPENDING: "bold yellow",
    State.TERMINATING: "bold yellow",
    State.SUSPENDED: "bold yellow",
    "Interrupted": "bold yellow",
    "Detached": "bold yellow",
}
# The metrics that a workload is trained for, the most important first; of other programs it is the loss.
HEADLINES = {
    "cvrp": ("cost", "gapSavingsPercent", "costSavings", "trainCost"),
    "vecrl": ("evalReturn", "evalLength", "episodeReturn", "episodes"),
    "lm": ("exactMatch", "reward", "perplexity", "completionTokens"),
    "vla": ("successRate", "wrongObjectRate", "flowLoss", "episodes"),
    "vlm": ("successRate", "episodeReturn", "episodes"),
}
# The metric of the curve: the loss of a policy gradient does not show progress.
CURVES = {"cvrp": "trainCost", "vecrl": "episodeReturn", "vlm": "episodeReturn"}
MOST_LEARNED = 5
DIAGNOSTICS = frozenset({"gradNorm", "learningRate", "advantage", "entropy", "dataWaitShare", "memoryPeakBytes"})


class Snapshot(NamedTuple):
    """A run at the moment `now` (unix seconds)."""

    job: TrainingJob
    now: float
    ranks: "Sequence[Rank]" = ()
    losses: "Sequence[Point]" = ()
    events: "Sequence[Event]" = ()
    notice: str = ""  # a notice of torchyard itself, for instance after Ctrl-C
    output: "Sequence[OutputLine]" = ()
    flags: str = ""  # of a job on a cluster, as ` -n team`
    missing: str = ""  # how many values of the curve are not finite, where `losses` has only a part of them

    def sentence(self, text: str) -> str:
        """Return a sentence about the job, with commands that can be typed as they stand."""
        return addressed(clean(text), self.job.metadata.name, self.flags)


def age(job: TrainingJob, now: float) -> float | None:
    """Return seconds from the job's start (or creation) to its end or now."""
    start = job.status.start_time or job.metadata.creation_timestamp
    if start is None:
        return None
    return max(0.0, (job.status.completion_time or now) - start)


def interrupted(job: TrainingJob, controlled: bool) -> bool:
    """Return whether the run should be going on but its controlling process is gone."""
    return not controlled and not job.status.state.at_rest


def state_word(job: TrainingJob, controlled: bool, detached: bool = False) -> str:
    """Return the state as people read it; a status without a process that writes it is out of date."""
    if interrupted(job, controlled):
        return "Detached" if detached else "Interrupted"
    return job.status.state or State.PENDING


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
    values = newest_values(status)
    if "loss" in values:
        words.append(f"loss {figure(values['loss'])}{_since(status, 'loss')}")
    if status.throughput.steps_per_second is not None:
        words.append(rate(status.throughput.steps_per_second, "steps"))
    if progress.eta_seconds is not None and state_word(job, controlled) == State.RUNNING:
        words.append(f"eta {span(progress.eta_seconds)}")
    return words


def _since(status: TrainingJobStatus, name: str) -> str:
    """Return since which step a metric has not been finite, if that was not just now."""
    metric = status.non_finite_metrics.get(name)
    return f" since step {metric.step}" if metric is not None and metric.step < status.progress.step else ""


def headline(job: TrainingJob) -> dict[str, str]:
    """Return all metrics as they are read, in an order that stays: the headline first, diagnostics last."""
    first = (*(HEADLINES.get(job.spec.trainer.name, ()) if job.spec.trainer else ()), "loss")
    places = {name: index for index, name in enumerate(first)}
    values = newest_values(job.status)
    names = sorted(values, key=lambda name: (name in DIAGNOSTICS, places.get(name, len(first)), name))
    return {name: f"{measure(name, values[name])}{_since(job.status, name)}" for name in names}


def curve_metric(job: TrainingJob) -> str:
    """Return the name of the metric that the curve shows."""
    name = CURVES.get(job.spec.trainer.name, "loss") if job.spec.trainer else "loss"
    return name if name in newest_values(job.status) else "loss"


def learned(job: TrainingJob) -> str:
    """Return the sentence that a succeeded job ends with: what it reached, in how many steps and how long."""
    status = job.status
    seconds = age(job, 0.0) if status.completion_time else None
    values = [f"{clean(name)} {value}" for name, value in headline(job).items() if name not in DIAGNOSTICS]
    words = [*values[:MOST_LEARNED]]
    if status.progress.step:
        words.append(f"{status.progress.step:,} step{'s' if status.progress.step > 1 else ''}")
    if status.throughput.steps_per_second is not None:
        words.append(rate(status.throughput.steps_per_second, "steps"))
    took = f" in {span(seconds)}" if seconds is not None else ""
    return f"{job.metadata.name} succeeded{took}" + (f": {', '.join(words)}" if words else "")


def record(history: "History", job: TrainingJob) -> None:
    """Add the metric of the curve to its history; a history of another metric begins again."""
    name = curve_metric(job)
    value = newest_values(job.status).get(name)
    if value is None or not job.status.progress.step:
        return
    if history.name != name:
        history.points.clear()
        history.name = name
    history.add(job.status.progress.step, value)


PROGRESS_EVERY = 10.0  # seconds between lines while nothing but the step changes


class PlainView:
    """Writes lines to a stream (stderr unless given); reports each fact once.

    How a job ended is left to the lines after the view.
    """

    def __init__(self, stream: TextIO | None = None, every: float = PROGRESS_EVERY) -> None:
        self.stream = stream or sys.stderr
        self.every = every
        self.shown: tuple[str, int, str] | None = None
        self.notice = ""
        self.last_line = float("-inf")
        self.last_words: list[str] = []
        self.warned: set[Event] = set()
        self.newest_warning = ""
        self.message = ""  # of the status, as it was last printed

    def show(self, snapshot: Snapshot) -> None:
        """Print what is new in `snapshot`."""
        status = snapshot.job.status
        over = status.state.terminal
        for event in snapshot.events:
            if event.type == "Warning" and event not in self.warned:
                self.warned.add(event)
                if over and event.message == status.message:
                    continue
                self.newest_warning = snapshot.sentence(event.message)
                self.say(event.unix or snapshot.now, f"Warning {clean(event.reason)}: {self.newest_warning}")
        if snapshot.notice and snapshot.notice != self.notice:
            self.notice = snapshot.notice
            self.say(snapshot.now, snapshot.notice)
        if not status.state:
            return
        moved = (status.state, status.round, status.reason)
        words, message = progress_words(snapshot.job), snapshot.sentence(status.message)
        if moved != self.shown:
            self.shown, self.message = moved, message
            self.progress(snapshot, words, "" if over or (message and message in self.newest_warning) else message)
        elif snapshot.now - self.last_line >= self.every and (words != self.last_words or message != self.message):
            news, self.message = ("" if message == self.message else message), message
            self.progress(snapshot, words, news)

    def progress(self, snapshot: Snapshot, words: list[str], message: str = "") -> None:
        """Print one line: state, round, how far, how fast."""
        status = snapshot.job.status
        self.last_line, self.last_words = snapshot.now, words
        head = f"{status.state} round {status.round}" if status.round else str(status.state)
        line = " ".join([head, *words])
        self.say(snapshot.now, f"{line}: {message}" if message else line)

    def say(self, now: float, text: str) -> None:
        """Print one line with the time of day."""
        print(f"{clock(now)} {text}", file=self.stream, flush=True)

    def close(self, snapshot: Snapshot | None) -> None:
        """Nothing is left to draw: the last state has been printed."""
