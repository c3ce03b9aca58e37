"""The index of curves beside `metrics.jsonl`, written by the agent that appends to it (`docs/checkpoints.md`).

With it the first reader of a long run does not read all of its lines. It is a cache: where the agent cannot go on with
the index of the round before, or a program logs very many metrics, a reader makes one.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from array import array
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterable, List, Tuple

from torchyard_agent.files import is_number
from torchyard_agent.telemetry.levels import REALS, Level, new_series
from torchyard_agent.telemetry.readings import reading

INDEX = ".metrics.index"
VERSION = 1
MOST_SERIES = 64  # of the agent, about 150 KB each; a reader indexes more
SMALL_BYTES = 512 * 1024  # a file of this size is read as fast as an index
SHARE = 16  # the index is written again when so much of the file was added
CHECKED_BYTES = 4096
PART_BYTES = 256 * 1024
BLOCKS = 1024
MOST_BEHIND = 8 * 1024 * 1024  # of the file, that are read when a round starts
MAX_INDEX_BYTES = 128 * 1024 * 1024

Row = Tuple[float, Dict[str, float]]


class StaleError(Exception):
    """There is no index that could be continued."""


class CurveIndex:
    """The index of a file that only this object appends to. Its methods raise OSError; `StaleError` ends it."""

    def __init__(self, path: Path) -> None:
        """Continue the index of `path`.

        Raises:
            StaleError: the file has lines that no index covers, and too many of them.
        """
        self._path = path
        self._series: Dict[str, Dict[str, Level]] = {}
        self._offset = self._saved = self._rows = self._generation = 0
        self._step = -float("inf")
        self._blocks: List[List[float]] = []
        size = path.stat().st_size if path.exists() else 0
        if size:
            self._continue(size)

    def add(self, rows: Iterable[Row], size: int) -> None:
        """Add the rows that were appended up to the offset `size`; write the index if enough was added.

        Raises:
            StaleError: there are too many metrics.
        """
        steps: Dict[str, Any] = {}
        values: Dict[str, Any] = {}
        low, high = float("inf"), -float("inf")
        for step, row in rows:
            if step < self._step:
                self._put(steps, values)
                self._generation += 1
            self._rows += 1
            self._step = step
            low, high = min(low, step), max(high, step)
            for name, value in row.items():
                of_metric = steps.setdefault(name, array("d"))
                if of_metric and of_metric[-1] == step:
                    values[name][-1] = value
                else:
                    of_metric.append(step)
                    values.setdefault(name, array("d")).append(value)
        self._put(steps, values)
        self._offset = size
        if low <= high:
            self._add_block([float(size), low, high])
        if self._offset > SMALL_BYTES and (self._offset - self._saved) * SHARE >= self._offset:
            self.save()

    def save(self) -> None:
        """Write the index, if a reader has any use for it."""
        if self._offset <= SMALL_BYTES or self._offset == self._saved or not self._rows:
            return
        levels = [level for each in self._series.values() for level in each.values()]
        series = {
            name: {key: {"buckets": len(level), "exponent": level.exponent} for key, level in each.items()}
            for name, each in self._series.items()
        }
        with self._path.open("rb") as source:
            check = _check(source, self._offset)
        blocks = [[int(end), low, high] for end, low, high in self._blocks]
        header = {"version": VERSION, "offset": self._offset, "check": check, "step": self._step,
                  "generation": self._generation, "rows": self._rows, "left_out": 0, "blocks": blocks,
                  "series": series}  # fmt: skip
        columns = (_little(column).tobytes() for level in levels for column in level.columns.values())
        index = self._path.with_name(INDEX)
        written = index.with_name(f"{INDEX}.agent.tmp")
        written.write_bytes(json.dumps(header).encode() + b"\n" + b"".join(columns))
        written.replace(index)
        self._saved = self._offset

    def _put(self, steps: Dict[str, Any], values: Dict[str, Any]) -> None:
        for name, of_metric in steps.items():
            if name not in self._series:
                if len(self._series) >= MOST_SERIES or len(name) > 256:
                    raise StaleError("too many metrics")
                self._series[name] = new_series()
            for level in self._series[name].values():
                level.add(of_metric, values[name], self._generation)
        steps.clear()
        values.clear()

    def _add_block(self, new: List[float]) -> None:
        size = PART_BYTES
        while new[0] > size * BLOCKS:
            size *= 2
        if len(self._blocks) > BLOCKS:  # the size has doubled
            old, self._blocks = self._blocks, []
            for block in old:
                self._append(block, size)
        self._append(new, size)

    def _append(self, new: List[float], size: int) -> None:
        before = self._blocks[-2][0] if len(self._blocks) > 1 else 0.0
        if self._blocks and new[0] - before <= size:
            _, low, high = self._blocks.pop()
            new = [new[0], min(low, new[1]), max(high, new[2])]
        self._blocks.append(new)

    def _continue(self, size: int) -> None:
        try:
            with self._path.with_name(INDEX).open("rb") as file, self._path.open("rb") as source:
                self._load(file, source, size)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise StaleError("the index is damaged, or of another file") from error
        if size - self._offset > MOST_BEHIND:
            raise StaleError("too much of the file is not in the index")
        with self._path.open("rb") as source:
            source.seek(self._offset)
            self.add(_parsed(source.read(size - self._offset)), size)

    def _load(self, file: BinaryIO, source: BinaryIO, size: int) -> None:
        if os.fstat(file.fileno()).st_size > MAX_INDEX_BYTES:
            raise ValueError("too large")
        header = json.loads(file.readline(2**20))
        if header["version"] != VERSION or header["left_out"] or len(header["series"]) > MOST_SERIES:
            raise ValueError("another index")
        offset = header["offset"]
        if not 0 <= offset <= size or _check(source, offset) != header["check"]:
            raise ValueError("of another file")
        for name, levels in header["series"].items():
            series = self._series[name] = new_series()
            for key, level in series.items():
                level.exponent = int(levels[key]["exponent"])
                for column_name in level.columns:
                    column = array("d" if column_name in REALS else "I")
                    column.frombytes(file.read(int(levels[key]["buckets"]) * column.itemsize))
                    if len(column) != levels[key]["buckets"]:
                        raise ValueError("damaged")
                    level.columns[column_name] = _little(column)
        self._blocks = [[float(number) for number in block] for block in header["blocks"]]
        self._rows, self._generation, self._step = header["rows"], header["generation"], float(header["step"])
        self._offset = self._saved = offset


def _parsed(data: bytes) -> Iterable[Row]:
    """Yield step and values of each line as readers of the file do; a line that is no row is left out."""
    for line in data.splitlines():
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(fields, dict) and is_number(fields.get("step")):
            step = float(fields.pop("step"))
            numbers = ((name, reading(value)) for name, value in fields.items())
            yield step, {name: value for name, value in numbers if value is not None}


def _little(column: Any) -> Any:
    """Return a column whose numbers have the lowest byte first, or the reverse of that."""
    if sys.byteorder == "little":
        return column
    swapped = column[:]
    swapped.byteswap()
    return swapped


def _check(file: BinaryIO, offset: int) -> int:
    file.seek(max(0, offset - CHECKED_BYTES))
    return zlib.crc32(file.read(min(offset, CHECKED_BYTES)))
