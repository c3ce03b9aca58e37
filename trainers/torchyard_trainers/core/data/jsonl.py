"""Records of files with one JSON object a line."""

import json
from array import array

import numpy as np

from torchyard_trainers.core.data.files import File
from torchyard_trainers.core.data.rows import Row
from torchyard_trainers.core.exits import DataError

LONGEST_LINE = 32 << 20  # bytes
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
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{self.where(index)}: not a JSON object: {error}") from None
        if not isinstance(found, dict):
            raise DataError(f"{self.where(index)}: expected a JSON object, found {type(found).__name__}")
        return found

    def where(self, index: int) -> str:
        """Return the place of a record for messages."""
        return f"{self._file.name}, line {index + 1}"


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
            raise DataError(f"{file.name}, line {line}: {size} bytes or more; a line has at most {LONGEST_LINE}")
        offsets.extend(begins[1:][-(ended + 1) % stride :: stride].tolist())
        begun, ended = int(begins[-1]), ended + len(ends)
        while len(offsets) > OFFSETS:
            del offsets[1::2]
            stride *= 2
    return offsets, stride, length
