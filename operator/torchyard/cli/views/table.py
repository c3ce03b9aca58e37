"""Runs as a table, a line each."""

from torchyard.api.formatting import clean
from torchyard.api.resource import TrainingJob, columns
from torchyard.api.status import State
from torchyard.api.values import span
from torchyard.cli.views.snapshot import age, interrupted, state_word

COLUMNS = ("NAME", "STATE", "PROGRESS", "STEP", "LOSS", "RATE", "RESTARTS", "ETA", "AGE")
WIDE_COLUMNS = (*COLUMNS, "ROUND", "CKPT", "NODES", "REASON")


def lines(columns: tuple[str, ...], rows: list[list[str]]) -> list[str]:
    """Return the columns as wide as their widest cell, two spaces apart: easy to read, easy to cut."""
    table = [list(columns), *([*cells, *[""] * (len(columns) - len(cells))] for cells in rows)]
    widths = [max(len(cells[i]) for cells in table) for i in range(len(columns))]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip() for cells in table
    ]


def row(job: TrainingJob, controlled: bool, now: float, wide: bool, detached: bool = False) -> list[str]:
    """Return the cells of one run in `ps`."""
    status = job.status
    seconds = age(job, now)
    state = state_word(job, controlled, detached)
    shown = columns(status)
    cells = [
        job.metadata.name,
        state,
        shown.progress,
        shown.step,
        shown.loss,
        shown.rate,
        str(status.restarts.total),
        shown.eta if state == State.RUNNING else "",
        span(seconds) if seconds is not None else "",
    ]
    if wide:
        saved = str(status.checkpoint.step) if status.checkpoint is not None else ""
        reason = "" if interrupted(job, controlled) else clean(status.reason)
        cells += [str(status.round), saved, f"{status.nodes.ready}/{status.nodes.desired}", reason]
    return cells
