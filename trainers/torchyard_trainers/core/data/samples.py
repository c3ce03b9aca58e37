"""Samples of records: encoded, and collated to micro-batches."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from torchyard_trainers.core.data.rows import Row, Rows, TooLongError, digest_of
from torchyard_trainers.core.data.scan import Encode, Scan, encoded
from torchyard_trainers.core.exits import DataError

MOST_REPLACED = 10_000  # records in a row that cannot be used
KEPT = 8  # long records that a process keeps encoded, for their other windows

Collate = Callable[[list[Any]], Any]


class Windows:
    """How a record that is longer than a sample becomes several.

    Args:
        length: tokens of a sample.
        part: returns one window of an encoded record, 0 the first; a shorter one is its own.
    """

    def __init__(self, length: int, part: Callable[[Any, int], Any]) -> None:
        self.length, self.part = length, part


class Samples:
    """A `Source` of records.

    Without a scan, lengths are unknown, and a bad record is found when it is read: it is an error, or the next good
    record takes its place. Which one that is follows from the content, so the order is the same everywhere, too.

    With a scan, records that cannot be used are no samples: ids are numbers of good ones, and of the windows of long
    ones. They follow from the content of the files, so a run has the same order everywhere and after every resume.
    """

    def __init__(
        self,
        rows: Rows,
        encode: Encode,
        collate: Collate,
        *,
        encoding: str = "",
        scan: Scan | None = None,
        windows: Windows | None = None,
        skip_bad: bool = False,
    ) -> None:
        """Encode records one by one and collate them in worker processes.

        Args:
            rows: the records.
            encode: returns the sample of a record, or raises `BadRecordError`. A pure function.
            collate: returns the tensors of a list of samples.
            encoding: identifies `encode`, for example by tokenizer and longest sample.
            scan: of the same rows and encoding.
            windows: of long records; None: each record is one sample.
            skip_bad: without a scan, the next good record takes the place of a bad one, not only of one that is too
                long.

        Raises:
            DataError: no record can be used.
        """
        self._rows, self._encode, self._collate, self._windows = rows, encode, collate, windows
        self._records: OrderedDict[int, Any] = OrderedDict()  # encoded, those with several windows
        self._lengths = self._ids = self._ends = None
        self._scanned, self._skip_bad = scan is not None, skip_bad
        self._count = len(rows)
        skipped = 0
        if scan is not None:
            assert len(scan.lengths) == len(rows)
            good = np.flatnonzero(scan.lengths)
            if not len(good):
                raise DataError(f"none of the {len(rows)} records can be used: {'; '.join(scan.problems) or TOO_LONG}")
            skipped = len(rows) - len(good)
            self._lengths, self._ids = scan.lengths[good], good if skipped else None
            self._count = len(good)
        parts = ""
        if self._lengths is not None and windows is not None and int(self._lengths.max()) > windows.length:
            counts = -(-self._lengths.astype(np.int64) // windows.length)
            self._ends = np.cumsum(counts)
            self._count = int(self._ends[-1])
            lengths = np.full(self._count, windows.length, np.uint32)
            lengths[self._ends - 1] = self._lengths - (counts - 1) * windows.length
            self._lengths, parts = lengths, f"/{self._count}"
        parts += "" if scan is not None else f"/unscanned{skip_bad:d}"
        self.fingerprint = digest_of(rows.fingerprint, encoding, f"{skipped}{parts}")

    def __len__(self) -> int:
        return self._count

    def lengths(self) -> Sequence[int] | None:
        """Return the length of each sample; None: without a scan."""
        return self._lengths  # type: ignore[return-value]

    def read(self, ids: Sequence[int]) -> Any:
        """Return the collated samples.

        Raises:
            DataError: a record cannot be used; the message names file, line and field.
        """
        return self._collate([self.sample(each) for each in ids])

    def sample(self, number: int) -> Any:
        """Return one sample."""
        index, part = self._place(number)
        if not self._scanned:
            return self._good(index)
        if self._ends is None or self._windows is None:
            return encoded(self._rows, self._encode, index)
        record = self._records.pop(index, None)
        if record is None:
            record = encoded(self._rows, self._encode, index)
        self._records[index] = record
        while len(self._records) > KEPT:
            self._records.popitem(last=False)
        return self._windows.part(record, part)

    def _good(self, index: int) -> Any:
        """Return the sample of a record, or of the first one after it that can be used."""
        first = None
        for number in range(min(MOST_REPLACED, len(self._rows))):
            try:
                return encoded(self._rows, self._encode, (index + number) % len(self._rows))
            except DataError as error:
                if not self._skip_bad and not isinstance(error.__cause__, TooLongError):
                    raise
                first = first or error
        raise DataError(f"{first} (nor can any of the {MOST_REPLACED} records after it)")

    def row(self, number: int) -> Row:
        """Return the record of a sample."""
        return self._rows.row(self._place(number)[0])

    def _place(self, number: int) -> tuple[int, int]:
        """Return the record of a sample, and which of its windows it is."""
        part = 0
        if self._ends is not None:
            record = int(np.searchsorted(self._ends, number, "right"))
            part = number - (int(self._ends[record - 1]) if record else 0)
            number = record
        return (int(self._ids[number]) if self._ids is not None else number), part


TOO_LONG = "all are too long; raise the length of a sample"
