"""Records of files with one JSON object a line."""

import json
import re
from array import array

import numpy as np

from torchyard_trainers.core.data.files import File
from torchyard_trainers.core.data.rows import Row
from torchyard_trainers.core.exits import DataError
from torchyard_trainers.core.hub import other_than_file

LONGEST_LINE = 32 << 20  # bytes
HEAD = 1 << 16  # bytes that show what a file is
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
OFFSETS = 1 << 22  # an index holds at most this many lines; of longer files, every second, fourth, ... line


class JsonLines:
    """A file with one JSON object a line.

    Lines are found by one pass over the file. Its index has at most `OFFSETS` entries, so that memory is bounded; a
    record of a longer file is read together with a few lines before it.
    """

    def __init__(self, file: File) -> None:
        """Index a file.

        Raises:
            DataError: the file cannot be read, has no line, or has one of more than `LONGEST_LINE` bytes.
        """
        if file.name.endswith((".gz", ".zst", ".bz2", ".xz")):
            raise DataError(f"{file.url}: compressed lines cannot be read in any order; decompress it, or use Parquet")
        self._file = file
        _check_kind(file)
        self._offsets, self._stride, self._length = _index(file)
        if not self._length:
            raise DataError(f"{file.url}: the file has no records")
        self.fingerprint = file.fingerprint

    def __len__(self) -> int:
        return self._length

    def row(self, index: int) -> Row:
        """Return a record."""
        group, rest = divmod(index, self._stride)
        end = self._offsets[group + 1] if group + 1 < len(self._offsets) else self._file.size
        line = self._file.read(self._offsets[group], end).split(b"\n")[rest]
        if not line.strip():
            raise DataError(
                f"{self.where(index)}: not a JSON object: the line is empty; remove it, or skip bad records"
            )
        try:
            found = json.loads(line)
        except UnicodeDecodeError as error:
            raise DataError(f"{self.where(index)}: not a JSON object in UTF-8: {error}; convert the file") from None
        except (ValueError, RecursionError) as error:
            raise DataError(f"{self.where(index)}: not a JSON object: {error}; write one object a line") from None
        if not isinstance(found, dict):
            raise DataError(
                f"{self.where(index)}: expected a JSON object, found {type(found).__name__}; write one object a line"
            )
        if _SURROGATE.search(line):
            self._check_text(found, index)
        return found

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
        return f"{self._file.name}, line {index + 1}"


def _check_kind(file: File) -> None:
    """Check by its beginning that a file holds lines of JSON.

    Raises:
        DataError: it is another kind of file.
    """
    head = file.read(0, HEAD)
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if head.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ")):
        raise DataError(f"{file.url}: the content is compressed, and cannot be read in any order; decompress it")
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{file.url}: the text is UTF-16; convert it to UTF-8")
    if text.startswith(b"["):
        raise DataError(f"{file.url}: it begins with a JSON array; write one object a line, for example by jq -c '.[]'")
    if other := other_than_file(head):
        raise DataError(f"{file.url} {other}")
    if b"\n" not in head and b"\r{" in text:
        raise DataError(f"{file.url}: lines end with a carriage return alone; end them with a line feed")


def _index(file: File) -> tuple["array[int]", int, int]:
    """Return the offsets of every `stride`th line, the stride, and the number of lines up to the last that has text."""
    offsets, stride = array("Q", [0]), 1
    ended = length = 0  # lines that have ended; lines up to the last that has text
    begun = position = 0  # of the current line; of the current block
    for block in file.blocks():
        if text := block.rstrip():
            length = ended + text.count(b"\n") + 1
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")).astype(np.uint64) + np.uint64(position)
        position += len(block)
        begins = np.concatenate([np.array([begun], np.uint64), ends + np.uint64(1)])
        sizes = np.append(ends, np.uint64(position)) - begins
        if int(sizes.max()) > LONGEST_LINE:
            line, size = ended + int(sizes.argmax()) + 1, int(sizes.max())
            raise DataError(
                f"{file.name}, line {line}: {size} bytes or more; a line has at most {LONGEST_LINE}; split it, or "
                "use Parquet"
            )
        offsets.extend(begins[1:][-(ended + 1) % stride :: stride].tolist())
        begun, ended = int(begins[-1]), ended + len(ends)
        while len(offsets) > OFFSETS:
            del offsets[1::2]
            stride *= 2
    return offsets, stride, length
