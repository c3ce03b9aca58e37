"""One pass over all records before the first step: their lengths, and which of them cannot be used."""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from torchyard_trainers.core.data.cache import own_folder
from torchyard_trainers.core.data.mixture import leaves, spread
from torchyard_trainers.core.data.rows import BadRecordError, Row, Rows, TooLongError, digest_of
from torchyard_trainers.core.data.sockets import use_short_paths
from torchyard_trainers.core.data.tokens import TokenWindows
from torchyard_trainers.core.exits import DataError

CHUNK = 256  # records that a worker process encodes at once
NAMED = 5  # bad records whose problems are kept
QUIET_SECONDS = 10.0  # between lines about the progress of a pass

Encode = Callable[[Row], Any]


class Size(NamedTuple):
    """The tokens of a sample, at least 1, and those that its record has lost because it was too long."""

    length: int
    lost: int = 0


@dataclass(frozen=True)
class Scan:
    """The result of one pass over all records; the same in every process, since it follows from the content."""

    lengths: NDArray[np.uint32]  # of each record; 0: it is not used
    lost: NDArray[np.uint32]  # tokens that each record loses; of one that is not used: all of them, 0 if it is bad
    problems: tuple[str, ...]  # of the first bad records, with their places

    @property
    def bad(self) -> int:
        """The number of records that cannot be used."""
        return int(((self.lengths == 0) & (self.lost == 0)).sum())

    @property
    def too_long(self) -> int:
        """The number of records that are not used because they are too long."""
        return int(((self.lengths == 0) & (self.lost > 0)).sum())

    @property
    def truncated(self) -> int:
        """The number of records that lose tokens."""
        return int(((self.lengths > 0) & (self.lost > 0)).sum())

    @property
    def lost_tokens(self) -> tuple[int, int]:
        """The tokens that truncated records lose, and those of all records that are used."""
        used = self.lengths > 0
        lost = int(self.lost[used].sum(dtype=np.int64))
        return lost, lost + int(self.lengths.sum(dtype=np.int64))


def scan(
    rows: Rows,
    encode: Encode,
    size: Callable[[Any], Size | int],
    *,
    skip_bad: bool = False,
    encoding: str = "",
    processes: int = 0,
    cache: Path | None = None,
    report: Callable[[str], None] = lambda _: None,
    vocabulary: int | None = None,
    fix: str = "correct them",
) -> Scan:
    """Encode all records once and return their sizes; one process of a machine does that, and only once for a file.

    Files are read in their own order, whatever the order and the parts of `rows` are.

    Args:
        rows: the records.
        encode: as for `Samples`; a record that raises `TooLongError` is not used, and no bad one.
        size: of a sample.
        skip_bad: mark records that cannot be used, in place of raising an error.
        encoding: identifies `encode` and `size`.
        processes: that encode; 0: this one.
        cache: folder of earlier results; None: one of this user in the folder for temporary files.
        report: takes lines about the progress of a long pass.
        vocabulary: numbers of the tokens of windows are below it; None: windows are encoded as other records are.
        fix: what to do about bad records.

    Raises:
        DataError: records cannot be used, and bad ones are not skipped; naming the first ones.
    """
    folder = cache or own_folder()
    folder.mkdir(parents=True, exist_ok=True)
    files = {digest_of(each.fingerprint, encoding, str(len(each))): each for each in leaves(rows)}
    found: dict[str, Scan] = {}
    with (folder / f"{digest_of(*files)}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed, also by a kill
        for key, each in files.items():
            if isinstance(each, TokenWindows) and vocabulary is not None:
                found[key] = _scan_windows(each, vocabulary)
            elif (stored := _stored(folder / f"{key}.scan", len(each))) is not None:
                found[key] = stored
        left = {key: each for key, each in files.items() if key not in found}
        for key, result in _scanned(left, encode, size, processes, report, hasty=not skip_bad):
            _store(folder / f"{key}.scan", result)
            found[key] = result
    of = {id(each): found[key] for key, each in files.items()}
    of |= {id(each): found[digest_of(each.fingerprint, encoding, str(len(each)))] for each in leaves(rows)}
    problems = [text for each in found.values() for text in each.problems][:NAMED]
    if problems and not skip_bad:
        bad, count = sum(each.bad for each in found.values()), sum(len(each.lengths) for each in found.values())
        raise DataError(_sentence(problems, bad, count, fix))
    lengths, lost = (spread(rows, lambda each, name=name: getattr(of[id(each)], name)) for name in ("lengths", "lost"))
    return Scan(lengths, lost, tuple(problems))


def _sentence(problems: Sequence[str], bad: int, count: int, fix: str) -> str:
    if bad == 1:
        return f"{problems[0]} (the only one of {count} records that cannot be used; {fix})"
    others = "; ".join(problems[1:])
    return f"{problems[0]} ({bad} of {count} records cannot be used; {fix}. The next ones: {others})"


def _scan_windows(rows: TokenWindows, vocabulary: int) -> Scan:
    """Return the sizes of windows, without making samples of them: only their largest tokens are looked at."""
    good = rows.highest() < vocabulary
    problems = [
        f"{rows.where(int(index))}: field 'tokens' has a token beyond those of the model, which has {vocabulary}"
        for index in np.flatnonzero(~good)[:NAMED]
    ]
    return Scan(np.where(good, rows.window, 0).astype(np.uint32), np.zeros(len(rows), np.uint32), tuple(problems))


def _scanned(
    files: dict[str, Rows],
    encode: Encode,
    size: Callable[[Any], Size | int],
    processes: int,
    report: Callable[[str], None],
    *,
    hasty: bool,
) -> Iterator[tuple[str, Scan]]:
    """Yield the result of each file.

    Args:
        files: by name.
        encode: a record.
        size: of a sample.
        processes: that encode.
        report: takes lines about the progress.
        hasty: end with an error when all records of the first chunk are bad.
    """
    if not files:
        return
    use_short_paths()
    chunks = _Chunks(list(files.values()), encode, size)
    # The loader's worker processes end by themselves when this one is killed.
    loader = iter(
        DataLoader(
            chunks,
            batch_size=None,
            num_workers=processes,
            multiprocessing_context="fork" if processes else None,
        )
    )
    total, done, began = sum(map(len, files.values())), 0, time.monotonic()
    told = began
    for key, rows in files.items():
        sizes, problems, at = np.zeros((2, len(rows)), np.uint32), [], 0
        while at < len(rows):
            part, texts = next(loader)
            if hasty and not done and len(texts) == part.shape[1] > 1:
                raise DataError(f"{texts[0]} (so are the {len(texts) - 1} records after it)")
            sizes[:, at : at + part.shape[1]] = part
            problems = [*problems, *texts][:NAMED]
            at, done = at + part.shape[1], done + part.shape[1]
            if (now := time.monotonic()) - told > QUIET_SECONDS:
                told, left = now, (now - began) * (total - done) / done
                report(f"checking records: {done:,} of {total:,}, {100 * done // total} %, about {left:.0f} s left")
        yield key, Scan(sizes[0], sizes[1], tuple(problems))


class _Chunks(Dataset[Any]):
    """The sizes and problems of `CHUNK` records of one file at a time."""

    def __init__(self, files: Sequence[Rows], encode: Encode, size: Callable[[Any], Size | int]) -> None:
        self._files, self._encode, self._size = files, encode, size
        counts = [-(-len(each) // CHUNK) for each in files]
        self._ends = np.cumsum(counts)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, number: int) -> tuple[Any, list[str]]:
        file = int(np.searchsorted(self._ends, number, "right"))
        rows = self._files[file]
        first = (number - (int(self._ends[file - 1]) if file else 0)) * CHUNK
        span = range(first, min(first + CHUNK, len(rows)))
        sizes, problems = np.zeros((2, len(span)), np.int64), []
        for place, index in enumerate(span):
            try:
                size = self._size(encoded(rows, self._encode, index))
                sizes[:, place] = size if isinstance(size, tuple) else (size, 0)
            except DataError as error:
                tokens = error.__cause__.tokens if isinstance(error.__cause__, TooLongError) else 0
                sizes[1, place] = tokens
                problems += [] if tokens else [str(error)]
        return sizes, problems


def encoded(rows: Rows, encode: Encode, index: int) -> Any:
    """Return the sample of a record.

    Raises:
        DataError: it cannot be used; the message names its place.
    """
    try:
        return encode(rows.row(index))
    except BadRecordError as error:
        raise DataError(f"{rows.where(index)}: {error}") from error


def _stored(path: Path, records: int) -> Scan | None:
    """Return an earlier result; None if there is none, or it is damaged."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    head, _, rest = content.partition(b"\n")
    if len(rest) != 8 * records:
        return None
    try:
        problems = json.loads(head)
    except ValueError:
        return None
    sizes = np.frombuffer(rest, "<u4").reshape(2, records)
    return Scan(sizes[0], sizes[1], tuple(problems))


def _store(path: Path, found: Scan) -> None:
    part = path.with_suffix(f".part-{os.getpid()}")
    sizes = np.stack([found.lengths, found.lost]).astype("<u4").tobytes()
    part.write_bytes(json.dumps(found.problems).encode() + b"\n" + sizes)
    part.replace(path)
