"""Windows of text that is tokenized already."""

import ast
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchyard_trainers.core.data.files import File
from torchyard_trainers.core.data.rows import Row
from torchyard_trainers.core.exits import DataError
from torchyard_trainers.core.hub import HEAD, other_than_file

WINDOWS = 4096  # that are looked at at once


class TokenWindows:
    """Tokenized text, cut into windows: record i is `{"tokens": [length + 1] int64}`, the last of them a target only.

    Args:
        file: `.npy` with a row of integers, or `.bin` with raw little-endian ones.
        length: tokens that a model reads at once.
        dtype: of a `.bin` file: `uint16` or `uint32`.
    """

    def __init__(self, file: File, length: int, dtype: str = "uint16") -> None:
        """Find the windows of a file.

        Raises:
            DataError: it is not a row of integers, or has no whole window.
        """
        if other := other_than_file(file.read(0, HEAD)):
            raise DataError(f"{file.url} {other}")
        self._file, self.window = file, length
        self._begin, self._type = _npy(file) if file.name.endswith(".npy") else (0, np.dtype(dtype).newbyteorder("<"))
        self._count = (file.size - self._begin) // self._type.itemsize
        if (file.size - self._begin) % self._type.itemsize:
            raise DataError(
                f"{file.url}: {file.size - self._begin} bytes are no whole number of {self._type.name}; name their "
                "type, or copy the file again"
            )
        if self._count <= length:
            raise DataError(f"{file.url}: {self._count} tokens, but a window needs {length + 1}")
        self.fingerprint = f"{file.fingerprint}-{length}-{self._type.str}"
        self._mapped: np.ndarray[Any, Any] | None = None
        if not file.is_remote:
            self._mapped = np.memmap(file.path, self._type, "r", self._begin, (self._count,))

    def __len__(self) -> int:
        return (self._count - 1) // self.window

    def row(self, index: int) -> Row:
        """Return a record."""
        first, last = index * self.window, (index + 1) * self.window + 1
        if self._mapped is not None:
            return {"tokens": np.array(self._mapped[first:last], np.int64)}
        size = self._type.itemsize
        found = self._file.read(self._begin + first * size, self._begin + last * size)
        return {"tokens": np.frombuffer(found, self._type).astype(np.int64)}

    def highest(self) -> NDArray[np.uint64]:
        """Return the largest token of each window, its target included; negative ones are larger than any other."""
        found = np.zeros(len(self), np.uint64)
        for first in range(0, len(self), WINDOWS):
            count = min(WINDOWS, len(self) - first)
            size, begin = self._type.itemsize, first * self.window
            end = begin + count * self.window + 1
            if self._mapped is not None:
                tokens = np.asarray(self._mapped[begin:end])
            else:
                content = self._file.read(self._begin + begin * size, self._begin + end * size)
                tokens = np.frombuffer(content, self._type)
            tokens = tokens.astype(np.uint64)
            targets = tokens[self.window :: self.window]
            found[first : first + count] = np.maximum(tokens[:-1].reshape(count, self.window).max(1), targets)
        return found

    def where(self, index: int) -> str:
        """Return the place of a record for messages."""
        return f"{self._file.name}, tokens {index * self.window} to {(index + 1) * self.window}"


MAX_HEADER = 4096  # bytes; one row of integers needs 128


def _npy(file: File) -> tuple[int, np.dtype[Any]]:
    """Return where the numbers of a `.npy` file begin, and their type."""
    head = file.read(0, 12)
    wide = head[6:7] != b"\x01"
    begin = (12 if wide else 10) + int.from_bytes(head[8:12] if wide else head[8:10], "little")
    try:
        described = ast.literal_eval(file.read(12 if wide else 10, min(begin, MAX_HEADER)).decode("latin1"))
        dtype, shape = np.dtype(described["descr"]), described["shape"]
    except (ValueError, SyntaxError, KeyError, TypeError, RecursionError, MemoryError) as error:
        raise DataError(f"{file.url}: not a .npy file: {error or type(error).__name__}") from error
    if head[:6] != b"\x93NUMPY" or dtype.kind not in "iu" or len(shape) != 1:
        raise DataError(f"{file.url}: expected one row of integers, found {dtype} of shape {shape}")
    return begin, dtype
