"""What a person wants to know of a run, most important first: drawing is a pure function of the run."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from torchyard.api import queue_position
from torchyard.api.formatting import addressed, clean
from torchyard.api.profiles.effective import filled_in
from torchyard.api.reasons import NO_REASON
from torchyard.api.resource import TrainingJob
from torchyard.api.status import Attempt, CheckpointStatus, CodeStatus, InputStatus, Phase, State
from torchyard.api.values import plural, size, span
from torchyard.cli.views.snapshot import STATE_STYLES, age, headline, interrupted, progress_words, state_word
from torchyard.client.backend import Kept
from torchyard.client.explanation import cause_words, last_lines, next_command
from torchyard.client.job_details import JobDetails, Processes
from torchyard.client.ranks import Rank
from torchyard.reconcile.observed import Pod

MAX_PODS = 16  # of this machine, with the process of every rank
MAX_CLUSTER_PODS = 32


def render(kept: Kept, details: JobDetails, now: float, flags: str = "") -> RenderableType:
    """State and sentence, progress, rounds, last lines of the failing rank, where things are, what to type next."""
    job = kept.job
    training = any(pod.workers for pod in details.processes.pods)
    sentence = detached_sentence(job, training) if kept.detached else ""
    parts: list[RenderableType] = [
        head(job, kept.controlled, now, sentence, flags=flags),
        Text(),
        facts(job, kept.controlled, details.ranks, now),
    ]
    if any(attempt.reason or attempt.cause for attempt in job.status.attempts):
        parts += [Text(), attempts(job.status.attempts)]
        said = last_lines(job) if job.status.state != State.SUCCEEDED else []
        parts += [Text(), Text(said[0], style="dim"), *map(Text, said[1:])] if said else []
    if details.folder is not None:
        parts += [Text(), places(details.folder, details.processes)]
        following = next_command_here(job, kept.controlled)
    else:
        parts += [Text(), pods_table(details.pods, now)] if details.pods else []
        following = next_command(job, flags)
    return Group(*parts, Text(), Text.assemble(("next: ", "dim"), (following, "bold")))


def detached_sentence(job: TrainingJob, training: bool) -> str:
    """Return what a run does whose controlling process was killed."""
    reattach = f"`torchyard resume {job.metadata.name}` reattaches"
    if not training:
        return f"Detached, and none of its workers runs: they may have ended; {reattach} and finds out."
    return f"Still training, detached: a failure would not be restarted now; {reattach}."


def head(job: TrainingJob, controlled: bool, now: float, detached: str = "", *, flags: str = "") -> RenderableType:
    """Return `cvrp  Running` and the sentence; `detached`: the sentence of a run whose pods live without control."""
    state, reason = state_word(job, controlled, bool(detached)), job.status.reason
    sentence = addressed(clean(job.status.message), job.metadata.name, flags)
    if interrupted(job, controlled):
        safe = "; its newest checkpoint is safe" if job.status.checkpoint is not None else ""
        reason, sentence = NO_REASON, detached or f"Its processes are gone{safe}."
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
    values.pop("loss", None)  # shown with the progress
    if values:
        table.add_row("metrics", "  ".join(f"{clean(name)} {value}" for name, value in values.items()))
    if status.checkpoint is not None:
        table.add_row("checkpoint", _checkpoint_words(status.checkpoint, now))
    _add_inputs(table, status.inputs)
    wanted = status.nodes.desired or job.spec.nodes
    idle = status.state.at_rest
    table.add_row("nodes", str(wanted) if idle else f"{status.nodes.ready} of {wanted} ready")
    if status.gang is not None and status.gang.enforced_by not in {"torchyard", "none"} and not status.state.terminal:
        words = [clean(status.gang.enforced_by), "admitted" if status.gang.admitted else "waits"]
        table.add_row("gang", ", ".join(filter(None, (*words, clean(status.gang.message)))))
        if place := queue_position.words(status.gang, now):
            table.add_row("queue", place)
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
    for name, text in _setting(job):
        table.add_row(name, text)
    if status.restarts.total or status.restarts.counted:
        words = [str(status.restarts.total)]
        words += (
            [f"{plural(status.restarts.counted, 'failure')} charged to the budget"] if status.restarts.counted else []
        )
        table.add_row("restarts", ", ".join(words))
    if status.kept_pod is not None:
        kept = status.kept_pod
        table.add_row("kept pod", f"{clean(kept.name)} of round {kept.round}, until {kept.until}")
    for text in status.warnings:
        table.add_row("warning", clean(text))
    return table


def _setting(job: TrainingJob) -> Iterator[tuple[str, str]]:
    """Yield what the profile sets, how the samples of a step are divided, which devices train, and which code."""
    status = job.status
    if status.profile is not None:
        sets = filled_in(job.spec, status.profile.defaults)
        words = [status.profile.name, *(f"{field} {json.dumps(value)}" for field, value in sets.items())]
        yield "profile", clean("  ".join(words))
    if status.batch is not None:
        parts = f"{status.batch.per_process} of each process"
        parts += f" in {status.batch.accumulation} passes" if status.batch.accumulation > 1 else ""
        yield "batch", f"{status.batch.whole} samples a step, {parts}"
    for device, holders in status.devices.items():
        what = "ranks" if re.search("[,-]", holders) else "rank"
        yield "device", f"{clean(device)}  {what} {clean(holders)}"
    if status.code is not None:
        yield "code", clean(_code_words(status.code))


def _code_words(code: CodeStatus) -> str:
    where = f"{code.branch or 'commit'} {code.commit[:12]}" if code.commit else ""
    changed = "with changes" if code.changed else ""
    source = f"from {code.source}" if code.source else ""
    return "  ".join(filter(None, (code.digest[:12], where, changed, source)))


def _checkpoint_words(checkpoint: CheckpointStatus, now: float) -> str:
    words = [f"step {checkpoint.step}"]
    words += [f"{span(now - checkpoint.time)} ago"] if checkpoint.time is not None else []
    words += [size(checkpoint.bytes)] if checkpoint.bytes else []
    words += [f"{plural(checkpoint.steps_at_risk, 'step')} at risk"] if checkpoint.steps_at_risk else []
    return "  ".join(words)


def _add_inputs(table: Table, inputs: Sequence[InputStatus]) -> None:
    for each in inputs:
        words = [f"{clean(each.name)}  {clean(each.state)}"]
        if each.bytes is not None:
            whole = f" of {size(each.total_bytes)}" if each.total_bytes and each.state != "ready" else ""
            words.append(f"{size(each.bytes)}{whole}")
        words += [f"revision {clean(each.revision)[:12]}"] if each.revision else []
        table.add_row("input", "  ".join(words))


def attempts(rounds: list[Attempt]) -> RenderableType:
    """Return one row a round: how long, which steps, why it ended, its first cause."""
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


def places(folder: Path, processes: Processes) -> RenderableType:
    """Return where logs and checkpoints are, and which processes run."""
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


def next_command_here(job: TrainingJob, controlled: bool) -> str:
    """Return the command that most likely comes next."""
    name = job.metadata.name
    if job.status.state == State.SUCCEEDED:
        return f"torchyard logs {name} --tail 20"
    if job.status.state == State.FAILED:
        return f"torchyard logs {name}"
    if job.status.state == State.SUSPENDED or interrupted(job, controlled):
        return f"torchyard resume {name}"
    return f"torchyard logs {name} -f"


def pods_table(pods: Sequence[Pod], now: float) -> RenderableType:
    """Return one row a pod of a cluster: node, phase, age, and what keeps it from running."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in ("pod", "node", "phase", "age", "why"):
        table.add_column(name, no_wrap=name != "why")
    for pod in pods[:MAX_CLUSTER_PODS]:
        why = ": ".join(filter(None, (clean(pod.reason), clean(pod.message))))
        phase = "Terminating" if pod.deleting else pod.phase
        table.add_row(clean(pod.name), clean(pod.node), phase, span(now - pod.created) if pod.created else "", why)
    if len(pods) > MAX_CLUSTER_PODS:
        table.add_row(f"and {len(pods) - MAX_CLUSTER_PODS} more")
    return table
