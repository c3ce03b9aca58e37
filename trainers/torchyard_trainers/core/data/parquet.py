"""Records of Parquet files."""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from torchyard_trainers.core.data.files import File
from torchyard_trainers.core.data.rows import Row
from torchyard_trainers.core.exits import DataError, StorageError
from torchyard_trainers.core.hub import HEAD, other_than_file

CACHED = 256 << 20  # bytes of decoded row groups that a process keeps

# A file of kilobytes may decode to terabytes: more than this, and than so many times its length, is not read.
MOST_DECODED, MOST_TIMES = 256 << 20, 50
_BATCH = 1024  # records that are decoded at once


def decoded(file: Any, size: int, columns: Sequence[str] | None, groups: Sequence[int], where: str) -> Any:
    """Return row groups of a Parquet file as one table of pyarrow.

    Args:
        file: a ParquetFile.
        size: its length in bytes.
        columns: only these; None: all.
        groups: numbers of the row groups.
        where: names the file in messages.

    Raises:
        DataError: they decode to far more than the file holds.
        ArrowException: they are damaged.
    """
    from pyarrow import Table

    limit, total, batches = max(MOST_DECODED, MOST_TIMES * size), 0, []
    names = list(columns) if columns is not None else None
    for batch in file.iter_batches(batch_size=_BATCH, row_groups=list(groups), columns=names, use_threads=False):
        total += batch.nbytes
        if total > limit:
            raise DataError(
                f"{where}: {size:,} bytes decode to more than {limit >> 20:,} MiB; write the file with smaller row "
                "groups, or find out who made it"
            )
        batches.append(batch)
    if not batches:
        return file.read_row_groups(list(groups), columns=names, use_threads=False)
    return Table.from_batches(batches).combine_chunks()


def evict(kept: OrderedDict[Any, Any], size: Callable[[Any], int]) -> None:
    """Drop the oldest values beyond `CACHED` bytes; the newest one stays, however large it is."""
    while len(kept) > 1 and sum(map(size, kept.values())) > CACHED:
        kept.popitem(last=False)


class Parquet:
    """A Parquet file. A record is read with its row group; a process keeps the last ones, up to `CACHED` bytes.

    Samples are read in random order, so a file that does not fit there should have row groups of about 1,000 records.

    Attributes:
        cached_bytes: size of the row groups that are kept.
    """

    def __init__(self, file: File, columns: Sequence[str] | None = None) -> None:
        """Read the metadata of a file; `columns`: only these.

        Raises:
            DataError: it is not a Parquet file, or lacks a column.
        """
        self._file, self._columns = file, list(columns) if columns is not None else None
        metadata = self._opened().metadata
        names = metadata.schema.to_arrow_schema().names
        for column in self._columns or []:
            if column not in names:
                raise DataError(f"{file.url}: field {column!r} is missing; the file has {', '.join(names)}")
        counts = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        self._ends = list(accumulate(counts))
        if not self._ends or not self._ends[-1]:
            raise DataError(f"{file.url}: the file has no records")
        self.fingerprint = file.fingerprint
        self._kept: OrderedDict[int, Any] = OrderedDict()
        self.cached_bytes = 0  # of the row groups that are kept

    def __len__(self) -> int:
        return self._ends[-1]

    def row(self, index: int) -> Row:
        """Return a record; its times have microseconds, of which nanoseconds are cut off.

        Raises:
            DataError: Python cannot hold a value.
        """
        from pyarrow import ArrowException

        group = bisect_right(self._ends, index)
        table = self._group(group)
        begin = self._ends[group] - table.num_rows
        try:
            return table.slice(index - begin, 1).to_pylist()[0]
        except (ArrowException, ValueError, OverflowError) as error:  # text that is not UTF-8, a time of year 10,000
            what = " ".join(str(error).split())
            raise DataError(f"{self.where(index)}: has a value that Python cannot hold: {what}; correct it") from error

    def where(self, index: int) -> str:
        """Return the place of a record for messages."""
        return f"{self._file.name}, record {index + 1}"

    def _group(self, number: int) -> Any:
        from pyarrow import ArrowException

        if number not in self._kept:
            try:
                file = self._opened()
                table = decoded(file, self._file.size, self._columns, [number], self._file.url)
                self._kept[number] = in_microseconds(table)
            except (ArrowException, OSError) as error:
                what = " ".join(str(error).split())
                if isinstance(error, OSError) and (self._file.is_remote or error.errno is not None):
                    raise StorageError(
                        f"{self._file.url} cannot be read: {what}; repair the volume or network"
                    ) from error
                raise DataError(f"{self._file.url}, row group {number}: {what}; copy the file again") from error
            evict(self._kept, lambda table: table.nbytes)
            self.cached_bytes = sum(table.nbytes for table in self._kept.values())
        self._kept.move_to_end(number)
        return self._kept[number]

    def _opened(self) -> Any:
        """Open the file in this process: a handle from before a fork shares its position with other processes."""
        try:
            from pyarrow import ArrowException, parquet
        except ImportError as error:
            raise DataError(f"{self._file.url}: Parquet needs the package pyarrow; add it to the image") from error
        try:
            return parquet.ParquetFile(self._file.open(), pre_buffer=False)
        except ArrowException as error:
            if other := other_than_file(self._file.read(0, HEAD)):
                raise DataError(f"{self._file.url} {other}") from error
            raise DataError(f"{self._file.url}: not a Parquet file: {error}; copy it again") from error


def in_microseconds(table: Any) -> Any:
    """Return a table whose times have microseconds, as Python's have; those that pandas writes have nanoseconds."""
    from pyarrow import duration, time64, timestamp, types

    for place, field in enumerate(table.schema):
        kind = field.type
        if not types.is_temporal(kind) or getattr(kind, "unit", "") != "ns":
            continue
        wanted = timestamp("us", kind.tz) if types.is_timestamp(kind) else duration("us")
        wanted = time64("us") if types.is_time(kind) else wanted
        table = table.set_column(place, field.name, table.column(place).cast(wanted, safe=False))
    return table
