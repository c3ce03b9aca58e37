"""The curves of a job as a table: `metrics.jsonl` of its checkpoint folder, read into columns."""

import heapq
import importlib.util
import json
import math
import os
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args, overload

import msgspec

from torchyard.api.files import open_regular
from torchyard.api.status import NonFinite
from torchyard.client.errors import FAILED, TorchYardError

FILE = "metrics.jsonl"
STEP = "step"
MAX_BYTES = 256 * 2**20
MAX_SIZE = "256Mi"
MAX_METRICS = 4096
MAX_ROUNDS = 10_000
"""Merged without sorting; a file with more is no history of restarts."""
NON_FINITE = frozenset(get_args(NonFinite))

_DECODE = msgspec.json.Decoder(dict[str, float | Literal["NaN", "Infinity", "-Infinity"]]).decode


class Column:
    """The values of one metric, each with the number of its row. 8 bytes a value, 12 if some rows lack the metric."""

    __slots__ = ("_first", "_rows", "values")

    def __init__(self) -> None:
        self.values = array("d")
        self._first = 0
        self._rows: array[int] | None = None

    def append(self, row: int, value: float) -> None:
        """Add the value of a row; rows grow."""
        if self._rows is not None:
            self._rows.append(row)
        elif not self.values:
            self._first = row
        elif row != self._first + len(self.values):
            self._rows = array("I", self.rows)
            self._rows.append(row)
        self.values.append(value)

    @property
    def rows(self) -> Sequence[int]:
        """The number of the row of each value."""
        return range(self._first, self._first + len(self.values)) if self._rows is None else self._rows

    def at(self, row: int) -> float | None:
        """Return the value of a row; None: that row lacks the metric."""
        rows = self.rows
        place = row - self._first if isinstance(rows, range) else bisect_left(rows, row)
        return self.values[place] if 0 <= place < len(rows) and rows[place] == row else None

    def moved(self, numbers: Sequence[int], count: int) -> "Column":
        """Return the column with other row numbers, of `count` rows; of several values for one, the last counts."""
        if 8 * len(self.values) > count:
            places = array("i", (-1,)) * count
            for place, row in enumerate(self.rows):
                places[numbers[row]] = place
            pairs = ((number, place) for number, place in enumerate(places) if place >= 0)
        else:
            newest = {numbers[row]: place for place, row in enumerate(self.rows)}
            pairs = ((number, newest[number]) for number in sorted(newest))
        column = Column()
        for number, place in pairs:
            column.append(number, self.values[place])
        return column


class MetricsTable(Sequence[Mapping[str, float]]):  # noqa: PLW1641 - it has no hash, as a list has none
    """Rows of metrics; each row has `step` and the metrics that were logged at that step, also NaN and infinity.

    The table is stored by column: a row becomes a dictionary when it is read.
    """

    def __init__(self, steps: Sequence[float] = (), values: Mapping[str, Column] | None = None) -> None:
        self._steps = steps
        self._values = dict(values or {})

    @property
    def columns(self) -> list[str]:
        """The names of all columns: `step` first, the others as they appear."""
        return [STEP, *self._values]

    def column(self, name: str) -> list[tuple[float, float]]:
        """Return the pairs (step, value) of one metric.

        Raises:
            TorchYardError: the metric was never logged.
        """
        if name == STEP and len(self._steps):
            return [(_whole(step), step) for step in self._steps]
        if name not in self._values:
            there = ", ".join(self.columns) if len(self) else "none"
            raise TorchYardError(f"there is no metric {name!r}", f"there are {there}")
        column = self._values[name]
        return [(_whole(self._steps[row]), value) for row, value in zip(column.rows, column.values, strict=True)]

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame with the step as its index.

        Raises:
            TorchYardError: pandas is not installed.
        """
        return data_frame(self, self.columns).set_index(STEP)

    def __len__(self) -> int:
        return len(self._steps)

    @overload
    def __getitem__(self, place: int) -> dict[str, float]: ...
    @overload
    def __getitem__(self, place: slice) -> list[dict[str, float]]: ...
    def __getitem__(self, place: int | slice) -> dict[str, float] | list[dict[str, float]]:
        if isinstance(place, slice):
            return [self[row] for row in range(*place.indices(len(self)))]
        row = range(len(self))[place]
        values = ((name, column.at(row)) for name, column in self._values.items())
        return {STEP: _whole(self._steps[row]), **{name: value for name, value in values if value is not None}}

    def __iter__(self) -> Iterator[dict[str, float]]:
        return (self[row] for row in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Sequence)
            and len(self) == len(other)
            and all(mine == theirs for mine, theirs in zip(self, other, strict=True))
        )

    def __repr__(self) -> str:
        return f"<metrics of {len(self)} steps: {', '.join(self._values) or 'none'}>"


def _whole(step: float) -> float:
    return int(step) if step.is_integer() else step


def data_frame(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Any:
    """Return rows as a pandas.DataFrame.

    Raises:
        TorchYardError: pandas is not installed.
    """
    if importlib.util.find_spec("pandas") is None:
        raise TorchYardError("to_pandas() needs pandas, which is not installed", "`pip install pandas`", FAILED)
    return importlib.import_module("pandas").DataFrame.from_records(list(rows), columns=columns)


def table_of(path: Path) -> MetricsTable:
    """Read `metrics.jsonl`; no file is an empty table.

    Raises:
        TorchYardError: it is too large to be read into memory, or has too many metrics.
    """
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_BYTES:
                what = f"{path} has {size / 2**20:.0f} MiB, and at most {MAX_BYTES // 2**20} are read"
                raise TorchYardError(what, "fetch the file and read it in parts", FAILED)
            return rows_of(file)
    except FileNotFoundError:
        return MetricsTable()
    except OSError as error:
        raise TorchYardError(f"{path} cannot be read: {error.strerror}", code=FAILED) from error


def rows_of(lines: Iterable[bytes]) -> MetricsTable:
    """Return the rows by step; of a step that was trained twice, after a restart, the newer values count (pure).

    Raises:
        TorchYardError: there are more than `MAX_METRICS` names.
    """
    steps = array("d")
    columns: dict[str, Column] = {}
    last, sorted_by_step, number = -math.inf, True, -1
    for step, values in parsed(lines):
        number += 1
        steps.append(step)
        sorted_by_step = sorted_by_step and step > last
        last = step
        for name, value in values.items():
            try:
                columns[name].append(number, value)
            except KeyError:
                columns[name] = _new_column(name, number, value, len(columns))
    if sorted_by_step:
        return MetricsTable(steps, columns)
    return _by_step(steps, columns)


def _by_step(steps: "array[float]", columns: dict[str, Column]) -> MetricsTable:
    """Return a table whose rows came in any order, with one row for each step; `steps` is empty from then on.

    A million rows are a few arrays here: lists of numbers would need ten times as much.
    """
    numbers, unique = array("I", bytes(4 * len(steps))), array("d")
    for step, place in _in_order(steps):
        if not unique or step != unique[-1]:
            unique.append(step)
        numbers[place] = len(unique) - 1
    del steps[:]
    moved: dict[str, Column] = {}
    for name in list(columns):
        moved[name] = columns.pop(name).moved(numbers, len(unique))
    return MetricsTable(unique, moved)


def _in_order(steps: "array[float]") -> Iterator[tuple[float, int]]:
    """Yield steps and their places in the order of steps; merges the rounds, in each of which steps grow."""
    begins = [0, *(place for place in range(1, len(steps)) if steps[place] < steps[place - 1])]
    if len(begins) > MAX_ROUNDS:
        return iter(sorted((step, place) for place, step in enumerate(steps)))
    rounds = (range(begin, end) for begin, end in pairwise([*begins, len(steps)]))
    return heapq.merge(*(((steps[place], place) for place in each) for each in rounds))


def parsed(lines: Iterable[bytes]) -> Iterator[tuple[float, dict[str, float]]]:
    """Yield step and values of each line; a line that was cut short, or is no object with a step, is left out."""
    for line in lines:
        try:
            row: dict[str, Any] | None = _DECODE(line)
        except (msgspec.DecodeError, RecursionError):
            row = _row(line)  # also accepts bare NaN, and leaves out what is no number
        if row is None:
            continue
        step = row.pop(STEP, None)
        if step.__class__ is not float or not -math.inf < step < math.inf:
            continue
        for name, value in row.items():
            if value.__class__ is str:
                row[name] = float(value)
        yield step, row


def value_of(value: object) -> float | None:
    """Return the value of a metric as `metrics.jsonl` has it; None: it is no number, nor the name of one not finite."""
    if isinstance(value, str):
        return float(value) if value in NON_FINITE else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if isinstance(value, float) or abs(value) < sys.float_info.max else None


def _row(line: bytes) -> dict[str, float] | None:
    """Return the numbers of a line that is not plain; None: it is no object."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict):
        return None
    numbers = ((name, value_of(value)) for name, value in values.items())
    return {name: value for name, value in numbers if value is not None}


def _new_column(name: str, row: int, value: float, before: int) -> Column:
    if before >= MAX_METRICS:
        what = f"there are more than {MAX_METRICS} metrics, {name[:80]!r} is one of them"
        raise TorchYardError(what, "log fewer names: a name should not hold a step or an index", FAILED)
    column = Column()
    column.append(row, value)
    return column
