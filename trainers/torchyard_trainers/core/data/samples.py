"""Samples of records: encoded, measured, and collated to micro-batches."""

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from torchyard_trainers.core.data.rows import BadRecordError, Row, Rows
from torchyard_trainers.core.data.sockets import use_short_paths
from torchyard_trainers.core.exits import DataError

CHUNK = 256  # records that a worker process encodes at once
NAMED = 5  # bad records whose problems are kept

Encode = Callable[[Row], Any]
Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class Scan:
    """The result of one pass over all records; the same in every process, since it follows from the content."""

    lengths: NDArray[np.uint32]  # of each record; 0: it cannot be used
    problems: tuple[str, ...]  # of the first bad records, with their places

    @property
    def bad(self) -> int:
        """The number of records that cannot be used."""
        return int((self.lengths == 0).sum())


class Samples:
    """A `Source` of records. Without a scan, lengths are unknown, and a bad record is found when it is read.

    With a scan, bad records are no samples: ids are numbers of good ones. They follow from the content of the files,
    so a run in which records are skipped has the same order everywhere and after every resume.
    """

    def __init__(
        self, rows: Rows, encode: Encode, collate: Collate, *, encoding: str = "", scan: Scan | None = None
    ) -> None:
        """Encode records one by one and collate them in worker processes.

        Args:
            rows: the records.
            encode: returns the sample of a record, or raises `BadRecordError`. A pure function.
            collate: returns the tensors of a list of samples.
            encoding: identifies `encode`, for example by tokenizer and longest sample.
            scan: of the same rows and encoding.

        Raises:
            DataError: no record can be used.
        """
        self._rows, self._encode, self._collate = rows, encode, collate
        self._lengths = self._ids = None
        if scan is not None:
            assert len(scan.lengths) == len(rows)
            good = np.flatnonzero(scan.lengths)
            if not len(good):
                raise DataError(f"none of the {len(rows)} records can be used: {'; '.join(scan.problems)}")
            self._lengths, self._ids = scan.lengths[good], good if scan.bad else None
        skipped = scan.bad if scan is not None else 0
        self.fingerprint = _digest(rows.fingerprint, encoding, str(skipped))

    def __len__(self) -> int:
        return len(self._ids) if self._ids is not None else len(self._rows)

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
        index = self._index(number)
        return _encoded(self._rows, self._encode, index)

    def row(self, number: int) -> Row:
        """Return the record of a sample."""
        return self._rows.row(self._index(number))

    def _index(self, number: int) -> int:
        return int(self._ids[number]) if self._ids is not None else number


def scan(
    rows: Rows,
    encode: Encode,
    length: Callable[[Any], int],
    *,
    skip_bad: bool = False,
    encoding: str = "",
    processes: int = 0,
    cache: Path | None = None,
) -> Scan:
    """Encode all records once and return their lengths; one process of a machine does that, and only once.

    Args:
        rows: the records.
        encode: as for `Samples`.
        length: of a sample; at least 1.
        skip_bad: mark records that cannot be used, in place of raising an error.
        encoding: identifies `encode` and `length`.
        processes: that encode; 0: this one.
        cache: folder of earlier results; None: one of this user in the folder for temporary files.

    Raises:
        DataError: a record cannot be used, and bad ones are not skipped.
    """
    folder = cache or _own_folder()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{_digest(rows.fingerprint, encoding, str(len(rows)))}.scan"
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed, also by a kill
        found = _stored(path, len(rows))
        if found is None:
            found = _scan(rows, encode, length, processes, skip_bad=skip_bad)
            _store(path, found)
    if found.bad and not skip_bad:
        raise DataError(_sentence(found))
    return found


def _scan(rows: Rows, encode: Encode, length: Callable[[Any], int], processes: int, *, skip_bad: bool) -> Scan:
    use_short_paths()
    # The loader's worker processes end by themselves when this one is killed.
    loader = DataLoader(
        _Chunks(rows, encode, length),
        batch_size=None,
        num_workers=processes,
        multiprocessing_context="fork" if processes else None,
    )
    lengths = np.zeros(len(rows), np.uint32)
    problems: list[str] = []
    for number, (part, texts) in enumerate(loader):
        if isinstance(texts, DataError):
            raise texts
        lengths[number * CHUNK : number * CHUNK + len(part)] = part
        problems = [*problems, *texts][:NAMED]
        if problems and not skip_bad:
            raise DataError(problems[0])
    return Scan(lengths, tuple(problems))


class _Chunks(Dataset[Any]):
    """The lengths and problems of `CHUNK` records at a time."""

    def __init__(self, rows: Rows, encode: Encode, length: Callable[[Any], int]) -> None:
        self._rows, self._encode, self._length = rows, encode, length

    def __len__(self) -> int:
        return (len(self._rows) + CHUNK - 1) // CHUNK

    def __getitem__(self, number: int) -> tuple[Any, list[str]]:
        span = range(number * CHUNK, min((number + 1) * CHUNK, len(self._rows)))
        lengths, problems = np.zeros(len(span), np.int64), []
        for place, index in enumerate(span):
            try:
                lengths[place] = self._length(_encoded(self._rows, self._encode, index))
            except DataError as error:
                problems.append(str(error))
        return lengths, problems


def _encoded(rows: Rows, encode: Encode, index: int) -> Any:
    try:
        return encode(rows.row(index))
    except BadRecordError as error:
        raise DataError(f"{rows.where(index)}: {error}") from None


def _sentence(found: Scan) -> str:
    return f"{found.problems[0]} ({found.bad} of {len(found.lengths)} records cannot be used)"


def _stored(path: Path, records: int) -> Scan | None:
    """Return an earlier result; None if there is none, or it is damaged."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    head, _, rest = content.partition(b"\n")
    if len(rest) != 4 * records:
        return None
    try:
        problems = json.loads(head)
    except ValueError:
        return None
    return Scan(np.frombuffer(rest, "<u4"), tuple(problems))


def _store(path: Path, found: Scan) -> None:
    part = path.with_suffix(f".part-{os.getpid()}")
    part.write_bytes(json.dumps(found.problems).encode() + b"\n" + found.lengths.astype("<u4").tobytes())
    part.replace(path)


def _own_folder() -> Path:
    """Return a folder for temporary files that only this user can write.

    Raises:
        DataError: another user made it.
    """
    folder = Path(tempfile.gettempdir()) / f"torchyard-data-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.lstat().st_uid != os.getuid() or folder.is_symlink():
        raise DataError(f"{folder} belongs to another user; remove it, or set TMPDIR")
    return folder


def _digest(*parts: str) -> str:
    return hashlib.blake2b("/".join(parts).encode(), digest_size=16).hexdigest()
