"""The files of a folder as one layer of an image: the same bytes on every machine, since nothing is compressed."""

import hashlib
import os
import stat
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from torchyard.api.values import size
from torchyard.client.bundle.bundle import left_out_sentences
from torchyard.client.bundle.contents import (
    EXECUTABLE,
    FILE,
    LINK,
    PLAIN,
    Sized,
    largest,
    link_target,
    present,
    too_large,
)
from torchyard.client.bundle.listing import listing
from torchyard.client.errors import TorchYardError

MAX_BYTES, MAX_FILES = 4 << 30, 100_000
"""Of the code in an image. The agent verifies no more."""


class Layer(NamedTuple):
    """A tar of some code.

    Attributes:
        digest: of the code: what `spec.code.digest` names.
        sha256: of the tar.
        length: of the tar, in bytes.
        sized: the files.
        left_out: files and folders that do not travel.
    """

    digest: str
    sha256: str
    length: int
    sized: Sequence[Sized]
    left_out: Sequence[str]

    def sentences(self) -> list[str]:
        """Return what is printed of the code, as for a submission."""
        total = sum(each.bytes for each in self.sized)
        files = f"{len(self.sized):,} {'file' if len(self.sized) == 1 else 'files'}"
        lines = [f"code: {files}, {size(total)}, largest: {largest(self.sized)}; digest {self.digest[:12]}"]
        return lines + left_out_sentences(self.left_out)


def write_layer(folder: Path, target: IO[bytes]) -> Layer:
    """Write the files of a folder that travel to a tar without times and owners, sorted by path.

    Raises:
        TorchYardError: a limit is exceeded, or a file cannot travel; names the file and what to do.
    """
    found = listing(folder)
    files = present(folder, found.paths)
    sized = [Sized(path, status.st_size) for path, status in files]
    if not files:
        raise TorchYardError(f"code: {folder} has no file that may travel", "give the folder that holds your code")
    total = sum(each.bytes for each in sized)
    if len(files) > MAX_FILES or total > MAX_BYTES:
        raise too_large(total, sized, f"{size(MAX_BYTES)} and {MAX_FILES:,} files")
    root, output, records = os.path.realpath(folder), Hashed(target), hashlib.sha256()
    with tarfile.open(fileobj=cast("IO[bytes]", output), mode="w|", format=tarfile.PAX_FORMAT, encoding="utf-8") as tar:
        for path, status in files:
            records.update(os.fsencode(f"{path}\0{_write(tar, root, path, status)}\n"))
    return Layer(records.hexdigest(), output.digest.hexdigest(), output.length, sized, found.left_out)


def _write(tar: tarfile.TarFile, root: str, path: str, status: os.stat_result) -> str:
    """Write one file; return its record without the path: mode, type, SHA-256 of the content."""
    header = tarfile.TarInfo(path)
    if stat.S_ISLNK(status.st_mode):
        link = link_target(root, path)
        header.type, header.linkname, header.mode = tarfile.SYMTYPE, os.fsdecode(link), 0o644
        tar.addfile(header)
        return f"{PLAIN}\0{LINK}\0{hashlib.sha256(link).hexdigest()}"
    mode = EXECUTABLE if status.st_mode & stat.S_IXUSR else PLAIN
    header.size, header.mode = status.st_size, int(mode, 8)
    try:
        descriptor = os.open(f"{root}/{path}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            content = _Read(file)
            tar.addfile(header, cast("IO[bytes]", content))
            changed = file.read(1) != b""
    except OSError as error:
        what = f"code: {path} cannot be read ({error.strerror or error})"
        raise TorchYardError(what, "make it readable, or add it to .torchyardignore") from error
    if changed:
        raise TorchYardError(f"code: {path} changed while it was read", "try again")
    return f"{mode}\0{FILE}\0{content.digest.hexdigest()}"


class _Read:
    """A file whose content is hashed as it is read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.digest = file, hashlib.sha256()

    def read(self, count: int) -> bytes:
        """Return at most `count` bytes."""
        data = self._file.read(count)
        self.digest.update(data)
        return data


class Hashed:
    """A file to write to, with the digest and the length of what was written."""

    def __init__(self, file: Any) -> None:
        self._file, self.digest, self.length = file, hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        """Write and hash some bytes."""
        self._file.write(data)
        self.digest.update(data)
        self.length += len(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing: no content is held back here."""
