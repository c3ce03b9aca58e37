"""The histories of a job's metrics, read fast: `metrics.jsonl` through an index of buckets that lies beside it.

The index is a cache: it covers `metrics.jsonl` up to an offset, and the rest of that file is read behind it. It is
written again when a sixteenth was added, and ignored if it is damaged or the file before the offset has changed.

Its format: one line of JSON, `Header`, then the columns of each level of each metric one after the other:
little-endian, float64 for steps and values, uint32 for counts.
"""

import contextlib
import os
import sys
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct, field

from torchyard.api.files import open_regular
from torchyard.client.errors import FAILED, TorchYardError
from torchyard.client.levels import COUNTS, REALS, Level, Series
from torchyard.client.metrics import parsed
from torchyard.local.run import write_atomic

INDEX = ".metrics.index"
VERSION = 1
MAX_SERIES = 512
"""Metrics of an index; `Histories.left_out` has the number of the others."""
MAX_INDEX_BYTES = 128 * 2**20
MAX_HEADER_BYTES = 2**20
MAX_BUCKETS = 2**16
PART_BYTES = 256 * 1024
"""Read at a time; a line that is longer is left out."""
MAX_NAME = 256
"""Characters in the name of a metric; a longer one counts as left out."""
SMALL_BYTES = 512 * 1024
"""A source of this size is read as fast as an index."""
SHARE = 16
CHECKED_BYTES = 4096
DETAIL_BYTES = 16 * 2**20
"""Of the source, that are read again for the points of a short range."""
BLOCKS = 1024


Block = tuple[int, float, float]
"""A part of the source: its end in bytes, smallest and largest step."""


class LevelHeader(Struct, frozen=True):
    """Number of buckets of a level, and their width as a power of two."""

    buckets: int
    exponent: int


class Header(Struct, frozen=True, kw_only=True):
    """First line of an index.

    Attributes:
        version: of the format.
        offset: bytes of the source that are in the index.
        check: CRC-32 of the last bytes before the offset, at most `CHECKED_BYTES`.
        step: of the last row.
        generation: number of times that a row had an earlier step than the row before.
        rows: number of rows.
        left_out: metrics beyond `MAX_SERIES`.
        blocks: parts of the source in their order.
        series: levels of each metric by name.
    """

    version: int
    offset: int
    check: int
    step: float
    generation: int
    rows: int
    left_out: int = 0
    blocks: list[Block] = field(default_factory=list)
    series: dict[str, dict[str, LevelHeader]] = field(default_factory=dict)


class Histories:
    """The metrics of one `metrics.jsonl`, which may grow.

    Attributes:
        series: buckets of each metric by name.
        indexed: names of all metrics of the index that was read, also of those that are not in `series`.
        rows: number of rows.
        generation: number of times that training went back to an earlier step.
        left_out: number of metrics that are not in `series`, since there are too many.
    """

    def __init__(self, path: Path, names: Sequence[str] | None = None, scale: str | None = None) -> None:
        """Read `path`, and of it only the metrics `names` and the level `scale` if they are given."""
        self.path, self.scale = path, scale
        self.names = None if names is None else frozenset(names)
        self._reset()
        self._is_loaded = False

    def _reset(self) -> None:
        self.series: dict[str, Series] = {}
        self.indexed: list[str] = []
        self.rows = self.generation = self._offset = self._check = self._saved = 0
        self._left_out: set[str] = set()
        self._hidden = 0
        self._step = float("-inf")
        self._blocks: list[Block] = []

    @property
    def left_out(self) -> int:
        """Number of metrics beyond the limit."""
        return self._hidden + len(self._left_out)

    @property
    def offset(self) -> int:
        """Number of bytes that were read, of the index and behind it."""
        return self._offset

    @property
    def behind(self) -> int:
        """Number of bytes that were read and are not in the index."""
        return self._offset - self._saved

    def follow(self, *, most: int | None = None) -> bool:
        """Read what was appended since the last call; return whether anything was.

        Args:
            most: bytes to read at most; by default all.

        Raises:
            TorchYardError: the file cannot be read.
        """
        try:
            with open_regular(self.path) as file:
                return self._follow(file, most)
        except FileNotFoundError:
            self._reset()
            return False
        except OSError as error:
            raise TorchYardError(f"{self.path} cannot be read: {error.strerror}", code=FAILED) from error

    def _follow(self, file: BinaryIO, most: int | None) -> bool:
        size = os.fstat(file.fileno()).st_size
        if not self._is_loaded and size > SMALL_BYTES:
            self._load(file, size)
        elif size < self._offset or _check(file, self._offset) != self._check:
            self._reset()
        self._is_loaded = True
        before, end = self._offset, size if most is None else min(size, self._offset + most)
        while self._offset < end and self._read_part(file):
            pass
        self._check = _check(file, self._offset)
        return self._offset > before

    def _read_part(self, file: BinaryIO) -> bool:
        file.seek(self._offset)
        data = file.read(PART_BYTES)
        whole = data.rfind(b"\n") + 1
        if not whole and len(data) < PART_BYTES:  # a line that is being written
            return False
        self._add(data[:whole])
        self._offset += whole or len(data)
        return True

    def _add(self, data: bytes) -> None:
        steps: dict[str, array[float]] = {}
        values: dict[str, array[float]] = {}
        low, high = float("inf"), float("-inf")
        for step, row in parsed(data.splitlines()):
            if step < self._step:
                self._put(steps, values)
                self.generation += 1
            self.rows += 1
            self._step = step
            low, high = min(low, step), max(high, step)
            for name, value in row.items():
                if name not in steps:
                    if not self._has(name):
                        continue
                    steps[name], values[name] = array("d"), array("d")
                of_metric = steps[name]
                if of_metric and of_metric[-1] == step:
                    values[name][-1] = value
                else:
                    of_metric.append(step)
                    values[name].append(value)
        self._put(steps, values)
        if low <= high:
            self._blocks = with_block(self._blocks, (self._offset + len(data), low, high))

    def _has(self, name: str) -> bool:
        if self.names is not None and name not in self.names:
            return False
        if name not in self.series:
            if len(self.series) >= MAX_SERIES or len(name) > MAX_NAME:
                if len(self._left_out) < MAX_SERIES:
                    self._left_out.add(name)
                return False
            self.series[name] = Series()
        return True

    def _put(self, steps: dict[str, "array[float]"], values: dict[str, "array[float]"]) -> None:
        for name, of_metric in steps.items():
            if of_metric:
                self.series[name].add(of_metric, values[name], self.generation)
        steps.clear()
        values.clear()

    def save(self, *, again: bool = True) -> bool:
        """Write the index if enough was added; return whether it was written.

        Args:
            again: this object follows the file; else the next reader would read all that the index lacks.
        """
        grown = self.behind
        enough = self._offset / SHARE if again else min(SMALL_BYTES, self._offset / SHARE)
        if self.names is not None or self._offset <= SMALL_BYTES or grown < enough:
            return False
        series = {
            name: {key: LevelHeader(len(level), level.exponent) for key, level in each.levels.items()}
            for name, each in self.series.items()
        }
        header = Header(
            version=VERSION, offset=self._offset, check=self._check, step=self._step, generation=self.generation,
            rows=self.rows, left_out=self.left_out, blocks=self._blocks, series=series,
        )  # fmt: skip
        levels = (level for each in self.series.values() for level in each.levels.values())
        columns = b"".join(_bytes(column) for level in levels for column in level.columns.values())
        try:
            write_atomic(self.path.with_name(INDEX), msgspec.json.encode(header) + b"\n" + columns)
        except OSError:  # of another user, or the disk is full: the next reader reads the source again
            return False
        self._saved = self._offset
        return True

    def _load(self, source: BinaryIO, size: int) -> None:
        with contextlib.suppress(OSError, ValueError, EOFError), open_regular(self.path.with_name(INDEX)) as file:
            header = _header(file)
            if header.offset > size or _check(source, header.offset) != header.check:
                return
            start = file.tell()
            series: dict[str, Series] = {}
            for name, levels in header.series.items():
                if self.names is None or name in self.names:
                    file.seek(start)
                    series[name] = _read_series(file, levels, self.scale)
                start += sum(level.buckets for level in levels.values()) * BUCKET_BYTES
            self.series, self._blocks, self.indexed = series, header.blocks, list(header.series)
            self.rows, self.generation, self._step = header.rows, header.generation, header.step
            self._offset = self._saved = header.offset
            self._check, self._hidden = header.check, header.left_out

    def points(self, name: str, low: float, high: float) -> "Points | None":
        """Return the logged points of a metric at the steps `low` to `high`.

        None: more of the file than `DETAIL_BYTES` would have to be read; use the buckets.
        """
        begins = [0, *(end for end, _, _ in self._blocks)]
        parts = [
            (begin, block[0])
            for begin, block in zip(begins, self._blocks, strict=False)
            if block[1] <= high and block[2] >= low
        ]
        if sum(end - begin for begin, end in parts) > DETAIL_BYTES:
            return None
        found: dict[float, float] = {}
        with open_regular(self.path) as file:
            for begin, end in parts:
                file.seek(begin)
                for step, row in parsed(file.read(end - begin).splitlines()):
                    if low <= step <= high and name in row:
                        found[step] = row[name]
        steps = array("d", sorted(found))
        return Points(steps, array("d", (found[step] for step in steps)))


def with_block(blocks: list[Block], new: Block) -> list[Block]:
    """Return blocks with another one: their size doubles as the file grows, so that they stay few (pure)."""
    size = PART_BYTES
    while new[0] > size * BLOCKS:
        size *= 2
    if len(blocks) > BLOCKS:  # the size has doubled
        old, blocks = blocks, []
        for block in old:
            _append(blocks, block, size)
    _append(blocks, new, size)
    return blocks


def _append(blocks: list[Block], new: Block, size: int) -> None:
    before = blocks[-2][0] if len(blocks) > 1 else 0
    if blocks and new[0] - before <= size:
        _, low, high = blocks.pop()
        new = (new[0], min(low, new[1]), max(high, new[2]))
    blocks.append(new)


class Points(Struct, frozen=True):
    """Points of a curve by step, which grows."""

    steps: "array[float]"
    values: "array[float]"


class Curve(Struct, frozen=True):
    """Buckets of a curve by step: columns of the same length, see `levels.Summary`."""

    first: "array[float]"
    last: "array[float]"
    mean: "array[float]"
    low: "array[float]"
    high: "array[float]"
    finite: "array[int]"
    bad: "array[int]"


def curve(level: Level, low: float = float("-inf"), high: float = float("inf")) -> Curve:
    """Return the buckets of a level that have a point at the steps `low` to `high`."""
    begin = bisect_left(level.columns["last"], low)
    end = bisect_right(level.columns["first"], high)
    return Curve(**{name: column[begin:end] for name, column in level.columns.items() if name != "generation"})


def histories_of(path: Path, names: Iterable[str] | None = None) -> Histories:
    """Return the metrics of a file that is not followed; write its index if it has none.

    Raises:
        TorchYardError: the file cannot be read.
    """
    histories = Histories(path, None if names is None else list(names))
    histories.follow()
    histories.save(again=False)
    return histories


BUCKET_BYTES = 8 * len(REALS) + 4 * len(COUNTS)


def _header(file: BinaryIO) -> Header:
    if os.fstat(file.fileno()).st_size > MAX_INDEX_BYTES:
        raise ValueError("too large")
    header = msgspec.json.decode(file.readline(MAX_HEADER_BYTES), type=Header)
    sizes = [level.buckets for levels in header.series.values() for level in levels.values()]
    body = os.fstat(file.fileno()).st_size - file.tell()
    if header.version != VERSION or len(header.series) > MAX_SERIES or header.offset < 0:
        raise ValueError("another format")
    if not all(0 <= size <= MAX_BUCKETS for size in sizes) or sum(sizes) * BUCKET_BYTES != body:
        raise ValueError("damaged")
    ends = [0, *(end for end, _, _ in header.blocks), header.offset]
    if any(end < begin for begin, end in pairwise(ends)):
        raise ValueError("damaged")
    return header


def _read_series(file: BinaryIO, headers: dict[str, LevelHeader], scale: str | None) -> Series:
    series = Series()
    if headers.keys() != series.levels.keys():
        raise ValueError("damaged")
    for key, header in headers.items():
        level = series.levels[key]
        if scale not in {None, key}:
            file.seek(header.buckets * BUCKET_BYTES, os.SEEK_CUR)
            continue
        if not -1100 < header.exponent < 1100:
            raise ValueError("damaged")
        level.exponent = header.exponent
        for name in level.columns:
            column = array("d" if name in REALS else "I")
            column.frombytes(file.read(header.buckets * column.itemsize))
            if len(column) != header.buckets:
                raise ValueError("damaged")
            if sys.byteorder == "big":
                column.byteswap()
            level.columns[name] = column
        if not _grows(level.columns["first"]):
            raise ValueError("damaged")
    return series


def _grows(steps: Sequence[float]) -> bool:
    return all(map(float.__lt__, steps, steps[1:]))


def _bytes(column: "array[float] | array[int]") -> bytes:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()


def _check(file: BinaryIO, offset: int) -> int:
    file.seek(max(0, offset - CHECKED_BYTES))
    return zlib.crc32(file.read(min(offset, CHECKED_BYTES)))
