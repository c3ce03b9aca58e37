"""Records of files with one JSON object a line; empty lines are no records."""

import json
import re
from array import array
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchyard_trainers.core.data.files import File
from torchyard_trainers.core.data.rows import Row
from torchyard_trainers.core.exits import DataError
from torchyard_trainers.core.hub import other_than_file
from torchyard_trainers.core.json_text import parse_json

LONGEST_LINE = 32 << 20  # bytes
HEAD = 1 << 16  # bytes that show what a file is
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
OFFSETS = 1 << 22  # an index holds at most this many records; of longer files, every second, fourth, ... one


class JsonLines:
    """A file with one JSON object a line.

    Records are found by one pass over the file. Its index has at most `OFFSETS` entries, so that memory is bounded; a
    record of a longer file is read together with a few lines before it.
    """

    def __init__(self, file: File) -> None:
        """Index a file.

        Raises:
            DataError: the file cannot be read, has no record, or has one of more than `LONGEST_LINE` bytes.
        """
        self._file = file
        check_kind(file)
        self._offsets, self._lines, self._stride, self._length = _index(file)
        if not self._length:
            raise DataError(f"{file.url}: the file has no records")
        self.fingerprint = file.fingerprint

    def __len__(self) -> int:
        return self._length

    def row(self, index: int) -> Row:
        """Return a record."""
        _, line = self._find(index)
        try:
            found = parse_json(line)
        except UnicodeDecodeError as error:
            raise DataError(f"{self.where(index)}: not a JSON object in UTF-8: {error}; convert the file") from None
        except json.JSONDecodeError as error:
            raise DataError(f"{self.where(index)}: not a JSON object: {error}; write one object a line") from None
        except ValueError as error:
            raise DataError(f"{self.where(index)}: cannot be read as JSON: {error}") from None
        if not isinstance(found, dict):
            raise DataError(f"{self.where(index)}: {self._other(found)}")
        if _SURROGATE.search(line):
            self._check_text(found, index)
        return found

    def _other(self, found: Any) -> str:
        """Return what is wrong with a line that holds another value than an object."""
        return f"expected a JSON object, found {type(found).__name__}; write one object a line"

    def _check_text(self, row: Row, index: int) -> None:
        """Check that escapes are characters: no tokenizer reads half of a pair."""
        for name, value in row.items():
            try:
                json.dumps([name, value], ensure_ascii=False).encode()
            except UnicodeEncodeError:
                raise DataError(
                    f"{self.where(index)}: field {name!r} has half of a pair of escapes (\\ud800 to \\udfff), which is "
                    "no character; remove it"
                ) from None

    def where(self, index: int) -> str:
        """Return the place of a record for messages."""
        return f"{self._file.name}, line {self._find(index)[0]}"

    def _find(self, index: int) -> tuple[int, bytes]:
        """Return the number of the line with a record, counted from 1, and that line."""
        group, rest = divmod(index, self._stride)
        end = self._offsets[group + 1] if group + 1 < len(self._offsets) else self._file.size
        lines = enumerate(self._file.read(self._offsets[group], end).split(b"\n"), self._lines[group])
        return next(islice(((number, line) for number, line in lines if line.strip()), rest, None))


def check_kind(file: File, *, array: bool = False) -> None:
    """Check by its beginning that a file holds lines of JSON, or text of another kind.

    Args:
        file: to check.
        array: whether it may begin with a bracket.

    Raises:
        DataError: it is another kind of file.
    """
    head = file.read(0, HEAD)
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if head.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ")):
        raise DataError(
            f"{file.url}: the content is compressed, and cannot be read in any order; decompress it, or let the name "
            "of a gzip file end with .gz"
        )
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{file.url}: the text is UTF-16; convert it to UTF-8")
    if text.startswith(b"[") and not array:
        raise DataError(
            f"{file.url}: it begins with a JSON array; write one object a line, or let its name end in .json"
        )
    if other := other_than_file(head):
        raise DataError(f"{file.url} {other}")
    if b"\n" not in head and b"\r{" in text:
        raise DataError(f"{file.url}: lines end with a carriage return alone; end them with a line feed")


def begins_array(file: File) -> bool:
    """Return whether the first character of a file is a bracket: the file is one JSON array."""
    return file.read(0, HEAD).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")


def _index(file: File) -> tuple["array[int]", "array[int]", int, int]:
    """Return the offset and line number of every `stride`th record, the stride, and the number of records."""
    offsets, lines, stride = array("Q"), array("Q"), 1
    count = position = begun = 0  # records; where the block begins, and the line that has not ended
    line, has_text = 1, False  # of the line that has not ended: its number, and whether it is a record
    last = (0, 1)  # where the newest record begins, and its line
    for block in chain(file.blocks(), [b"\n"]):  # the last line may have no end
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
        starts = np.append(0, ends + 1)
        filled = _with_text(block, starts, np.append(ends, len(block)))
        filled[0] |= has_text
        begins, numbers = (position + starts)[filled], (line + np.arange(len(starts)))[filled]
        if filled[0]:
            begins[0] = begun
        places, in_lines = np.append(last[0], begins), np.append(last[1], numbers)
        position, line, has_text = position + len(block), line + len(ends), bool(filled[-1])
        begun = position - len(block) + int(starts[-1]) if len(ends) else begun
        _check_sizes(file, np.append(places, position), in_lines)
        last = int(places[-1]), int(in_lines[-1])
        ended = slice(-count % stride, len(begins) - has_text, stride)
        offsets.extend(begins[ended].tolist())
        lines.extend(numbers[ended].tolist())
        count += len(begins) - has_text
        while len(offsets) > OFFSETS:
            del offsets[1::2], lines[1::2]
            stride *= 2
    return offsets, lines, stride, count


def _with_text(block: bytes, starts: NDArray[Any], ends: NDArray[Any]) -> NDArray[Any]:
    """Return which lines have more than white space."""
    codes = np.frombuffer(block + b"\n", np.uint8)
    filled = codes[starts] > ord(" ")  # their first characters, which are enough for nearly all lines
    for each in np.flatnonzero(~filled & (ends > starts)):
        filled[each] = bool(block[starts[each] : ends[each]].strip())
    return filled


def _check_sizes(file: File, places: NDArray[Any], lines: NDArray[Any]) -> None:
    """Check how many bytes are between records that begin at `places`, in `lines`; the last place is where they end."""
    sizes = np.diff(places)
    if (size := int(sizes.max())) > LONGEST_LINE:
        raise DataError(
            f"{file.name}, line {lines[sizes.argmax()]}: {size} bytes or more; a line has at most {LONGEST_LINE}, with "
            "the empty lines that follow it; split it, or use Parquet"
        )
