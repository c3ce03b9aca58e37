"""What a person wants to know of a run, most important first: drawing is a pure function of the run."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from torchyard.api.formatting import plural, span
from torchyard.api.resource import TrainingJob
from torchyard.api.states import Phase, State
from torchyard.api.status import Attempt
from torchyard.cli.ending import last_lines
from torchyard.cli.live import STATE_STYLES
from torchyard.cli.picture import age, headline, interrupted, progress_words, state_word
from torchyard.cli.ranks import Rank
from torchyard.cli.runs import PodProcesses, Run
from torchyard.cli.words import addressed, clean, clip, size

MAX_PODS = 16


class Processes(NamedTuple):
    """Who runs: the controlling process, 0 if it is not known yet, and the pods."""

    controller: int | None
    pods: Sequence[PodProcesses]


def render(run: Run, processes: Processes, ranks: tuple[Rank, ...], now: float) -> RenderableType:
    """State and sentence, progress, rounds, last lines of the failing rank, where things are, what to type next."""
    job = run.job
    training = any(pod.workers for pod in processes.pods)
    sentence = detached_sentence(job, training) if run.detached else ""
    parts: list[RenderableType] = [
        head(job, run.controlled, now, sentence),
        Text(),
        facts(job, run.controlled, ranks, now),
    ]
    closed = [attempt for attempt in job.status.attempts if attempt.reason or attempt.cause]
    if closed:
        parts += [Text(), attempts(job.status.attempts)]
    said = last_lines(job) if job.status.state != State.SUCCEEDED else []
    if said:
        parts += [Text(), Text(said[0], style="dim"), *map(Text, said[1:])]
    following = Text.assemble(("next: ", "dim"), (next_command(job, run.controlled), "bold"))
    return Group(*parts, Text(), places(run.folder.path, processes), Text(), following)


def detached_sentence(job: TrainingJob, training: bool) -> str:
    """Return what a run does whose controlling process was killed."""
    what = "Still training, detached" if training else "Its pods are alive, detached"
    return f"{what}: a failure would not be restarted now; `torchyard resume {job.metadata.name}` reattaches."


def head(job: TrainingJob, controlled: bool, now: float, detached: str = "", *, flags: str = "") -> RenderableType:
    """Return `cvrp  Running` and the sentence; `detached`: the sentence of a run whose pods live without control."""
    state, reason = state_word(job, controlled, bool(detached)), job.status.reason
    sentence = addressed(clean(job.status.message), job.metadata.name, flags)
    if interrupted(job, controlled):
        safe = "; its newest checkpoint is safe" if job.status.checkpoint is not None else ""
        reason, sentence = "", detached or f"Its processes are gone{safe}."
    seconds = age(job, now)
    line = Text.assemble(
        (job.metadata.name, "bold"),
        "  ",
        (state, STATE_STYLES.get(state, "bold cyan")),
        (f"  {reason}" if reason and reason != state else "", "yellow"),
        (f"  {span(seconds)}" if seconds is not None else "", "dim"),
    )
    return Group(line, Text(sentence)) if sentence else line


def facts(job: TrainingJob, controlled: bool, ranks: tuple[Rank, ...], now: float) -> RenderableType:
    """Progress, metrics, checkpoint, nodes and restarts, a line each."""
    status = job.status
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    words = progress_words(job, controlled)
    if status.progress.phase and status.progress.phase != Phase.STEP and status.state == State.RUNNING:
        words.append(status.progress.phase)
    table.add_row("progress", "  ".join(words) or "no step yet")
    values = headline(job)
    values.pop("loss", None)  # told with the progress
    if values:
        table.add_row("metrics", "  ".join(f"{clean(name)} {value}" for name, value in values.items()))
    if status.checkpoint is not None:
        saved = status.checkpoint.time
        words = [f"step {status.checkpoint.step}"]
        words += [f"{span(now - saved)} ago"] if saved is not None else []
        words += [size(status.checkpoint.bytes)] if status.checkpoint.bytes else []
        words += (
            [f"{plural(status.checkpoint.steps_at_risk, 'step')} at risk"] if status.checkpoint.steps_at_risk else []
        )
        table.add_row("checkpoint", "  ".join(words))
    wanted = status.nodes.desired or job.spec.nodes
    idle = status.state.at_rest
    table.add_row("nodes", str(wanted) if idle else f"{status.nodes.ready} of {wanted} ready")
    if status.state == State.RUNNING and ranks:
        behind = max(ranks, key=lambda rank: rank.lag)
        words = [f"{len(ranks)} reporting"]
        words += [f"rank {behind.rank} is {plural(behind.lag, 'step')} behind"] if behind.lag else []
        table.add_row("ranks", "  ".join(words))
    if status.gpus.count:
        words = [str(status.gpus.count)]
        words += [f"{status.gpus.utilization:.0f}% busy"] if status.gpus.utilization is not None else []
        used, whole = status.gpus.memory_used_bytes, status.gpus.memory_total_bytes
        words += [f"{size(used)} of {size(whole)}"] if used is not None and whole else []
        table.add_row("gpus", "  ".join(words))
    for device, holders in status.devices.items():
        what = "ranks" if re.search("[,-]", holders) else "rank"
        table.add_row("device", f"{clean(device)}  {what} {clean(holders)}")
    if status.restarts.total or status.restarts.counted:
        words = [str(status.restarts.total)]
        words += (
            [f"{plural(status.restarts.counted, 'failure')} charged to the budget"] if status.restarts.counted else []
        )
        table.add_row("restarts", ", ".join(words))
    for text in status.warnings:
        table.add_row("warning", clean(text))
    return table


def attempts(rounds: list[Attempt]) -> RenderableType:
    """One row a round: how long, which steps, why it ended, its first cause."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in ("round", "took", "steps", "ended", "first cause"):
        table.add_column(name, justify="right" if name == "round" else "left", no_wrap=name != "first cause")
    for attempt in rounds:
        start, end = attempt.start_time, attempt.end_time
        table.add_row(
            str(attempt.round),
            span(end - start) if start is not None and end is not None else "",
            f"{attempt.start_step} to {attempt.end_step}",
            clean(attempt.reason) or ("" if attempt.end_time else "open"),
            cause_words(attempt),
        )
    return table


def cause_words(attempt: Attempt) -> str:
    """`rank 1 on cvrp-0-1 (node-1), exit 137: RuntimeError: ...`."""
    cause = attempt.cause
    if cause is None:
        return ""
    words = [f"rank {cause.rank}"] if cause.rank is not None else []
    words += [f"on {clean(cause.pod)}"] if cause.pod else []
    words += [f"({clean(cause.node)})"] if cause.node else []
    where = " ".join(words)
    what = [f"exit {cause.exit_code}"] if cause.exit_code is not None else []
    text = ", ".join(([where] if where else []) + what)
    exception = clip(clean(cause.exception.replace("\n", " ")), 200)
    return f"{text}: {exception}" if exception and text else text or exception


def places(folder: Path, processes: Processes) -> RenderableType:
    """Where logs and checkpoints are, and which processes run."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("logs", str(folder / "pods"))
    table.add_row("checkpoints", str(folder / "checkpoints"))
    lines = [f"controller {processes.controller}"] if processes.controller else []
    for pod in processes.pods[:MAX_PODS]:
        workers = [f"rank {rank} {pid}" for rank, pid in list(pod.workers.items())[:MAX_PODS]]
        lines.append(f"{pod.pod}: {', '.join([f'agent {pod.agent}', *workers])}")
    if len(processes.pods) > MAX_PODS:
        lines.append(f"and {len(processes.pods) - MAX_PODS} more pods")
    for number, line in enumerate(lines):
        table.add_row("" if number else "pids", line)
    return table


def next_command(job: TrainingJob, controlled: bool) -> str:
    """The command that most likely comes next."""
    name = job.metadata.name
    if job.status.state == State.SUCCEEDED:
        return f"torchyard logs {name} --tail 20"
    if job.status.state == State.FAILED:
        return f"torchyard logs {name}"
    if job.status.state == State.SUSPENDED or interrupted(job, controlled):
        return f"torchyard resume {name}"
    return f"torchyard logs {name} -f"
