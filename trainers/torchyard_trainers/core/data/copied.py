"""Records of files that can only be read from their beginning: CSV, JSON arrays, lines of text, and all of it gzipped.

One pass writes a copy with one JSON object a line into the folder for temporary files, which is then read in any order.
A machine does that once for a file, whatever the number of jobs and processes is.
"""

import csv
import fcntl
import gzip
import io
import json
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from torchyard_trainers.core.data.cache import own_folder
from torchyard_trainers.core.data.files import BLOCK, File
from torchyard_trainers.core.data.jsonl import LONGEST_LINE, JsonLines, check_kind
from torchyard_trainers.core.data.rows import digest_of, kind_of
from torchyard_trainers.core.exits import DataError, StorageError

# A file of kilobytes may decompress to terabytes: more than this, and than so many times its length, is not read.
MOST_DECOMPRESSED, MOST_TIMES = 1 << 30, 100
KEPT_SECONDS = 7 * 86_400.0  # since a copy was last opened
QUIET_SECONDS = 10.0  # between lines about the progress of a copy
_VERSION = "1"  # counts changes of what a file is copied to
_SPACE = " \t\r\n"

# A record, or what is wrong with it.
Records = Iterator[dict[str, Any] | str]


class Copied(JsonLines):
    """Records of a file, read from a copy of it."""

    def __init__(self, file: File, kind: str, report: Callable[[str], None] = lambda _: None) -> None:
        """Copy a file, unless this machine has a copy.

        Args:
            file: to read.
            kind: `csv`, `tsv`, `json`, `jsonl` or `txt`; the file is compressed if its name ends with `.gz`.
            report: takes lines about the progress of a long copy.

        Raises:
            DataError: the file is not of this kind, has no records, or decompresses to far more than it holds.
            StorageError: there is no space for the copy.
        """
        self._original = file
        super().__init__(File(_copy(file, kind, report)))
        self.fingerprint = digest_of(file.fingerprint, kind)

    def where(self, index: int) -> str:
        """Return the place of a record for messages."""
        return f"{self._original.name}, record {index + 1}"

    def _other(self, found: Any) -> str:
        return str(found)  # a problem takes the place of a record


def _copy(file: File, kind: str, report: Callable[[str], None]) -> Path:
    """Return the path of the copy, which is written if there is none."""
    folder = own_folder()
    path = folder / f"{digest_of(file.fingerprint, kind, _VERSION)}.jsonl"
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed, also by a kill
        if path.exists():
            os.utime(path)
            return path
        _remove_old(folder)
        part = path.with_suffix(f".part-{os.getpid()}")
        try:
            if not _write(part, file, kind, report):
                raise DataError(f"{file.url}: the file has no records")
            part.replace(path)
        except OSError as error:
            if error.filename is not None and Path(error.filename) != part:
                raise
            free = shutil.disk_usage(folder).free >> 20
            raise StorageError(
                f"{file.url} cannot be copied to {folder}, where {free} MiB are free: {error}; set TMPDIR to a volume "
                "with more space, or use Parquet"
            ) from error
        finally:
            part.unlink(missing_ok=True)
    return path


def _write(path: Path, file: File, kind: str, report: Callable[[str], None]) -> int:
    """Write the records of a file as lines; return their number."""
    count, told = 0, time.monotonic()
    with file.open() as raw, path.open("wb") as copy:
        try:
            for each in _READERS[kind](file, _text(file, raw)):
                copy.write(_line(each))
                count += 1
                if count % 1000 == 0 and (now := time.monotonic()) - told > QUIET_SECONDS:
                    told = now
                    report(f"copying {file.name}: {count:,} records, {100 * raw.tell() // max(file.size, 1)} %")
        except UnicodeDecodeError as error:
            raise DataError(f"{file.url}: not UTF-8: {error}; convert the file") from error
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(f"{file.url}: cannot be decompressed: {error}; copy the file again") from error
    return count


def _line(record: dict[str, Any] | str) -> bytes:
    text = json.dumps(record, ensure_ascii=False)
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:  # half of a pair of escapes, which is named when the record is read
        return json.dumps(record).encode() + b"\n"


def _remove_old(folder: Path) -> None:
    for path in folder.glob("*.jsonl"):
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > KEPT_SECONDS:
                path.unlink()


def _text(file: File, raw: Any) -> io.TextIOWrapper:
    """Return the text of an opened file, decompressed if it is compressed."""
    if not file.name.lower().endswith(".gz"):
        check_kind(file, array=True)
        return io.TextIOWrapper(io.BufferedReader(raw, BLOCK), "utf-8-sig", newline="")
    limit = max(MOST_DECOMPRESSED, MOST_TIMES * file.size)
    return io.TextIOWrapper(io.BufferedReader(_Bounded(file, raw, limit), BLOCK), "utf-8-sig", newline="")


class _Bounded(io.RawIOBase):
    """The content of a gzip file up to a limit."""

    def __init__(self, file: File, raw: Any, limit: int) -> None:
        self._name, self._size, self._limit, self._left = file.url, file.size, limit, limit
        self._file = gzip.GzipFile(fileobj=raw, mode="rb")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        found = self._file.read(len(buffer))
        self._left -= len(found)
        if self._left < 0:
            raise DataError(
                f"{self._name}: {self._size:,} bytes decompress to more than {self._limit >> 20:,} MiB; decompress it "
                "yourself, or find out who made it"
            )
        buffer[: len(found)] = found
        return len(found)


def _lines(file: File, text: io.TextIOWrapper) -> Iterator[str]:
    """Yield lines with their ends."""
    number = 0
    while line := text.readline(LONGEST_LINE):
        number += 1
        if len(line) == LONGEST_LINE and not line.endswith("\n"):
            raise DataError(f"{file.name}, line {number}: longer than {LONGEST_LINE} characters; split it")
        yield line


def _json_lines(file: File, text: io.TextIOWrapper) -> Records:
    for number, line in enumerate(_lines(file, text), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield f"line {number} is not a JSON object: {error}; write one object a line"
        else:
            yield _record(found)


def _record(value: Any) -> dict[str, Any] | str:
    return value if isinstance(value, dict) else f"expected a JSON object, found {kind_of(value)}"


def _texts(file: File, text: io.TextIOWrapper) -> Records:
    for line in _lines(file, text):
        if content := line.rstrip("\r\n"):
            yield {"text": content}


def _json(file: File, text: io.TextIOWrapper) -> Records:
    """Yield the elements of an array, or the objects of lines."""
    head = _skipped(text)
    if head == "[":
        yield from _elements(file, text)
    elif head:
        yield from _json_lines(file, _Joined(head, text))  # type: ignore[arg-type]


def _skipped(text: io.TextIOWrapper) -> str:
    """Return the first character that is no space; "" at the end."""
    while (head := text.read(1)) and head in _SPACE:
        pass
    return head


class _Joined:
    """A text whose first character has been read already."""

    def __init__(self, head: str, text: io.TextIOWrapper) -> None:
        self._head, self._text = head, text

    def readline(self, size: int) -> str:
        head, self._head = self._head, ""
        return head + self._text.readline(size - len(head))


def _elements(file: File, text: io.TextIOWrapper) -> Records:
    """Yield the elements of a JSON array whose bracket has been read; at most one of them, and a block, are held."""
    decoder, buffer, at, count, size = json.JSONDecoder(), "", 0, 0, BLOCK
    after = ""  # what an element follows: "" the bracket, or a comma
    while True:
        try:
            if at >= len(buffer):
                raise ValueError("the array has no end")  # noqa: TRY301 - more is read, as for half of an element
            if buffer[at] in _SPACE:
                at += 1
                continue
            if buffer[at] == "]" and (count == 0 or not after):
                break
            if count and not after:
                if buffer[at] != ",":
                    raise _not_an_array(file, count, "expected a comma or the end of the array")
                at, after = at + 1, ","
                continue
            found, end = decoder.raw_decode(buffer, at)
            if end == len(buffer):
                raise ValueError("the array has no end")  # noqa: TRY301 - a number may continue in the next block
        except (ValueError, RecursionError) as error:
            pending = buffer[at:]
            more = text.read(size) if len(pending) <= LONGEST_LINE else ""
            if not more:
                raise _not_an_array(file, count, str(error)) from error
            buffer, at, size = pending + more, 0, max(BLOCK, len(pending))
            continue
        yield _record(found)
        at, after, count = end, "", count + 1
    if buffer[at + 1 :].strip() or text.read(BLOCK).strip():
        raise _not_an_array(file, count, "something follows the array")


def _not_an_array(file: File, count: int, problem: str) -> DataError:
    return DataError(f"{file.name}, behind record {count}: not a JSON array of records: {problem}; correct the file")


def _csv(file: File, text: io.TextIOWrapper) -> Records:
    return _table(file, text, None)


def _tsv(file: File, text: io.TextIOWrapper) -> Records:
    return _table(file, text, "\t")


def _table(file: File, text: io.TextIOWrapper, delimiter: str | None) -> Records:
    """Yield the rows of a table with a header; every cell is text, an empty one null.

    Args:
        file: for messages.
        text: of the table.
        delimiter: between cells; None: the comma, or the semicolon if the header has no comma.
    """
    lines = _lines(file, text)
    head = next(lines, "")
    if delimiter is None:
        delimiter = ";" if ";" in head and "," not in head else ","
    before = csv.field_size_limit(LONGEST_LINE)
    try:
        rows = csv.reader(_chained(head, lines), delimiter=delimiter, strict=True)
        names = [name.strip() for name in next(rows, [])]
        if twice := sorted({name for name in names if name and names.count(name) > 1}):
            raise DataError(f"{file.name}: the header has {twice[0]!r} more than once; give columns different names")
        for row in rows:
            if not row:
                continue
            if len(row) != len(names):
                yield f"line {rows.line_num} has {len(row)} cells, and the header {len(names)}"
                continue
            # The first column of a table that pandas writes is its index, without a name.
            yield {name: cell or None for name, cell in zip(names, row, strict=True) if name}
    except csv.Error as error:
        raise DataError(f"{file.name}: not a table: {error}; write cells with quotes in quotes, doubled") from error
    finally:
        csv.field_size_limit(before)


def _chained(head: str, lines: Iterator[str]) -> Iterator[str]:
    yield head
    yield from lines


_READERS: dict[str, Callable[[File, io.TextIOWrapper], Records]] = {
    "csv": _csv,
    "tsv": _tsv,
    "json": _json,
    "jsonl": _json_lines,
    "ndjson": _json_lines,
    "txt": _texts,
}
