"""The archive of a bundle: a compressed tar that is the same for the same files, apart from the compression."""

import io
import tarfile
import zlib
from collections.abc import Sequence
from typing import IO, cast

from torchyard.api.values import size
from torchyard.client.bundle.contents import (
    EXECUTABLE,
    LINK,
    MAX_ARCHIVE_BYTES,
    CodeFile,
    Sized,
    too_large,
)

PART_BYTES = 700 * 1024
"""Of one ConfigMap, which holds 1 MiB: the rest is for the jobs that share it."""
_LEVEL = 5
_GZIP = 31
"""zlib's number for a gzip header with the largest window."""


def archive(files: Sequence[CodeFile]) -> bytes:
    """Return the files as a gzipped PAX archive without times and owners.

    Raises:
        TorchYardError: it is too large to travel.
    """
    target = _Compressed()
    with tarfile.open(fileobj=cast("IO[bytes]", target), mode="w|", format=tarfile.PAX_FORMAT, encoding="utf-8") as tar:
        for file in files:
            tar.addfile(_header(file), io.BytesIO(file.data) if file.type != LINK else None)
            if len(target.data) > MAX_ARCHIVE_BYTES:
                break
    data = target.finished()
    if len(data) > MAX_ARCHIVE_BYTES:
        sized = [Sized(each.path, len(each.data)) for each in files]
        raise too_large(sum(each.bytes for each in sized), sized, size(MAX_ARCHIVE_BYTES), " compressed")
    return data


def parts(data: bytes) -> list[bytes]:
    """Cut an archive into pieces that fit into a ConfigMap each."""
    return [data[start : start + PART_BYTES] for start in range(0, len(data), PART_BYTES)]


class _Compressed:
    """A file that compresses what is written to it."""

    def __init__(self) -> None:
        self.data = bytearray()
        self._compressor = zlib.compressobj(_LEVEL, wbits=_GZIP)

    def write(self, data: bytes) -> int:
        """Compress some bytes."""
        self.data += self._compressor.compress(data)
        return len(data)

    def finished(self) -> bytes:
        """Return the compressed archive."""
        self.data += self._compressor.flush()
        return bytes(self.data)


def _header(file: CodeFile) -> tarfile.TarInfo:
    header = tarfile.TarInfo(file.path)
    header.mode = 0o755 if file.mode == EXECUTABLE else 0o644
    if file.type == LINK:
        header.type, header.linkname = tarfile.SYMTYPE, file.data.decode("utf-8", "surrogateescape")
    else:
        header.size = len(file.data)
    return header
