"""Runs as a table, a line each."""

from torchyard.api import queue_position
from torchyard.api.formatting import clean, clip
from torchyard.api.status import State
from torchyard.api.values import span
from torchyard.client.summaries import Summary

COLUMNS = ("NAME", "STATE", "PROGRESS", "STEP", "LOSS", "RATE", "RESTARTS", "ETA", "AGE")
WIDE_COLUMNS = (*COLUMNS, "ROUND", "CKPT", "NODES", "REASON")
MAX_CELL = 63
"""Characters of a cell: the longest name of a run. One forged status must not widen the lines of all others."""


def lines(columns: tuple[str, ...], rows: list[list[str]]) -> list[str]:
    """Return the columns as wide as their widest cell, two spaces apart: easy to read, easy to cut."""
    cut = ([clip(cell, MAX_CELL) for cell in cells] for cells in rows)
    table = [list(columns), *([*cells, *[""] * (len(columns) - len(cells))] for cells in cut)]
    widths = [max(len(cells[i]) for cells in table) for i in range(len(columns))]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip() for cells in table
    ]


def _start(summary: Summary, now: float) -> str:
    """Return the place of a waiting job in its queue, and about when it starts: `#3, starts in 40 min`."""
    gang = summary.queued
    if gang is None or gang.position is None:
        return ""
    wait = queue_position.about(gang, now).replace("about", "in")
    return f"#{gang.position}, starts {wait}" if wait else f"#{gang.position} in queue"


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
        summary.eta if summary.word == State.RUNNING else _start(summary, now),
        span(seconds) if seconds is not None else "",
    ]
    if wide:
        saved = str(summary.saved) if summary.saved is not None else ""
        ready, desired = summary.nodes
        reason = "" if summary.interrupted else clean(summary.reason)
        cells += [str(summary.round), saved, f"{ready}/{desired}", reason]
    return cells
