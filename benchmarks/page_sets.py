"""Runs with long histories for benchmarks of the page."""

import json
import math
import os
import random
import zlib
from pathlib import Path

from list_runs import make

from torchyard.client.histories import CHECKED_BYTES, INDEX, Histories, histories_of
from torchyard.local.run import run_folder

FILE = "metrics.jsonl"


def rows(first: int, end: int, scale: float = 1.0) -> str:
    """Return lines of two metrics; one loss among a million is a spike."""
    return "".join(
        json.dumps(
            {
                "step": step,
                "loss": scale * math.exp(-step / 1e5) + (step == 123_456),
                "gradNorm": scale * (1 + step % 7),
            }
        )
        + "\n"
        for step in range(first, end)
    )


def metrics(home: Path, number: int) -> Path:
    """Create a run; return the path of its metrics."""
    make(home, number)
    folder = run_folder(f"run-{number:05}", home)
    folder.checkpoints.mkdir(exist_ok=True)
    return folder.checkpoints / FILE


def short(home: Path, runs: int, points: int) -> None:
    """Create runs with whole files, without indexes."""
    for number in range(runs):
        metrics(home, number).write_text(rows(0, points, 1 + number / 10))


def long(home: Path, runs: int, points: int) -> None:
    """Create runs with indexes of so many points, whose files have only their last bytes on the disk."""
    first = metrics(home, 0)
    first.write_text(rows(0, points))
    whole = histories_of(first)
    end, size = first.read_bytes()[-CHECKED_BYTES:], first.stat().st_size
    noise = random.Random(1)
    for number in range(1, runs):
        path = metrics(home, number)
        with path.open("wb") as file:
            file.truncate(size - len(end))
            file.seek(0, os.SEEK_END)
            file.write(end)
        scale = noise.uniform(0.3, 3)
        moved = Histories(path)
        moved.__dict__ |= whole.__dict__ | {"path": path, "_saved": 0, "_check": zlib.crc32(end)}
        for series in whole.series.values():
            for level in series.levels.values():
                for column in ("mean", "low", "high"):
                    values = level.columns[column]
                    for place, value in enumerate(values):
                        values[place] = value * scale
        moved.save()
        assert path.with_name(INDEX).is_file()
