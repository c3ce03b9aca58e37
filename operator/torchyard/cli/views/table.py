"""Runs as a table, a line each."""

from torchyard.api.formatting import clean
from torchyard.api.status import State
from torchyard.api.values import span
from torchyard.client.summaries import Summary

COLUMNS = ("NAME", "STATE", "PROGRESS", "STEP", "LOSS", "RATE", "RESTARTS", "ETA", "AGE")
WIDE_COLUMNS = (*COLUMNS, "ROUND", "CKPT", "NODES", "REASON")


def lines(columns: tuple[str, ...], rows: list[list[str]]) -> list[str]:
    """Return the columns as wide as their widest cell, two spaces apart: easy to read, easy to cut."""
    table = [list(columns), *([*cells, *[""] * (len(columns) - len(cells))] for cells in rows)]
    widths = [max(len(cells[i]) for cells in table) for i in range(len(columns))]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip() for cells in table
    ]


def row(summary: Summary, now: float, wide: bool) -> list[str]:
    """Return the cells of one run in `ps`."""
    seconds = summary.age(now)
    cells = [
        summary.name,
        summary.word,
        summary.progress,
        summary.step,
        summary.loss,
        summary.rate,
        str(summary.restarts),
        summary.eta if summary.word == State.RUNNING else "",
        span(seconds) if seconds is not None else "",
    ]
    if wide:
        saved = str(summary.saved) if summary.saved is not None else ""
        ready, desired = summary.nodes
        reason = "" if summary.interrupted else clean(summary.reason)
        cells += [str(summary.round), saved, f"{ready}/{desired}", reason]
    return cells
