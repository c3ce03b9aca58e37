"""Runs as a table, a line each."""

from torchyard.api.resource import TrainingJob
from torchyard.cli.picture import age, interrupted
from torchyard.cli.words import clean, figure, span

COLUMNS = ("NAME", "STATE", "PROGRESS", "STEP", "LOSS", "RATE", "RESTARTS", "ETA", "AGE")
WIDE_COLUMNS = (*COLUMNS, "ROUND", "CKPT", "NODES", "REASON")


def lines(columns: tuple[str, ...], rows: list[list[str]]) -> list[str]:
    """Columns as wide as their widest cell, two spaces apart: easy to read, easy to cut."""
    table = [list(columns), *([*cells, *[""] * (len(columns) - len(cells))] for cells in rows)]
    widths = [max(len(cells[i]) for cells in table) for i in range(len(columns))]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip() for cells in table
    ]


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
