"""`torchyard ps`: every run, a line each."""

import time
from typing import Annotated, Literal

import typer

from torchyard.api.resource import TrainingJob
from torchyard.cli.errors import SUCCEEDED, RefusalError
from torchyard.cli.output import emit, say
from torchyard.cli.picture import age, interrupted
from torchyard.cli.words import clean, figure, span

COLUMNS = ("NAME", "STATE", "PROGRESS", "STEP", "LOSS", "RATE", "RESTARTS", "ETA", "AGE")
WIDE_COLUMNS = (*COLUMNS, "ROUND", "CKPT", "NODES", "REASON")


def command(
    output: Annotated[
        Literal["json", "yaml", "wide"] | None, typer.Option("--output", "-o", help="json, yaml or a wider table.")
    ] = None,
) -> int:
    """List the runs of this machine, newest first."""
    from torchyard.cli.runs import Run, everything, load
    from torchyard.cli.status import document

    runs: list[Run] = []
    unreadable: list[list[str]] = []
    for folder in everything():
        try:
            runs.append(load(folder))
        except RefusalError as refusal:
            say(f"torchyard: {refusal.sentence}; {refusal.fix}")
            unreadable.append([folder.name, "Unreadable"])
    runs.sort(key=lambda run: run.job.metadata.creation_timestamp or "", reverse=True)
    if output in {"json", "yaml"}:
        emit([document(run) for run in runs], "json" if output == "json" else "yaml")
        return SUCCEEDED
    now, wide = time.time(), output == "wide"
    print_table(
        WIDE_COLUMNS if wide else COLUMNS, [row(run.job, run.controlled, now, wide) for run in runs] + unreadable
    )
    return SUCCEEDED


def print_table(columns: tuple[str, ...], rows: list[list[str]]) -> None:
    """Columns as wide as their widest cell, two spaces apart: easy to read, easy to cut."""
    table = [list(columns), *([*cells, *[""] * (len(columns) - len(cells))] for cells in rows)]
    widths = [max(len(cells[i]) for cells in table) for i in range(len(columns))]
    for cells in table:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip())


def row(job: TrainingJob, controlled: bool, now: float, wide: bool) -> list[str]:
    """The cells of one run in `ps`."""
    status = job.status
    seconds = age(job, now)
    state = "Interrupted" if interrupted(job, controlled) else status.state or "Pending"
    progress = status.progress
    cells = [
        job.metadata.name,
        state,
        f"{progress.percent:.0f}%" if progress.percent is not None else "",
        f"{progress.step}/{progress.total_steps}" if progress.total_steps else str(progress.step or ""),
        figure(status.metrics["loss"]) if "loss" in status.metrics else "",
        f"{figure(status.throughput.steps_per_second)}/s" if status.throughput.steps_per_second is not None else "",
        str(status.restarts.total),
        span(progress.eta_seconds) if progress.eta_seconds is not None and state == "Running" else "",
        span(seconds) if seconds is not None else "",
    ]
    if wide:
        saved = str(status.checkpoint.step) if status.checkpoint is not None else ""
        cells += [str(status.round), saved, f"{status.nodes.ready}/{status.nodes.desired}", clean(status.reason)]
    return cells
