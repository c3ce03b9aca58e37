"""Files out of an archive that a pod sent, of which nothing is believed.

Only regular files and folders are made, each below one folder, by names that are looked at part by part, and by way of
that folder's descriptor, so that no link leads elsewhere, even if another process writes there. That of `tarfile`
is not used: its filters had flaws, and which Python runs this is not up to us.
"""

import contextlib
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from torchyard.client.artifacts import Allowance
from torchyard.client.errors import FAILED, TorchYardError

ROOT = "fetched"
MAX_DEPTH, MAX_NAME_BYTES = 32, 255
MAX_HEADER_BYTES = 1024 * 1024
CHUNK = 1024 * 1024


def unpack(archive: Path, to: Path, allowance: Allowance) -> bool:
    """Unpack what a pod sent to `to`, which must not exist; whether it is a folder.

    Links, devices and pipes are left out.

    Raises:
        TorchYardError: it is no archive as it should be, or too large.
    """
    try:
        with (
            archive.open("rb") as file,
            tarfile.open(fileobj=cast("IO[bytes]", _Bounded(file)), mode="r:") as tar,
            _inside(to) as folder,
        ):
            found = [kind for member in tar if (kind := _entry(tar, member, folder, to.name, allowance)) is not None]
    except (tarfile.TarError, OSError, ValueError, EOFError, OverflowError, RecursionError) as error:
        raise TorchYardError(f"the received archive is damaged ({error})", "fetch it again", FAILED) from error
    if not found:
        raise TorchYardError("the received archive is damaged (it is empty)", "fetch it again", FAILED)
    return found[0]


class _Bounded:
    """A file of which no header is read that would take much memory."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        """Return so many bytes.

        Raises:
            tarfile.ReadError: these are too many for a header.
        """
        if not 0 <= size <= max(MAX_HEADER_BYTES, CHUNK):
            raise tarfile.ReadError(f"a header of {size} bytes")
        return self._file.read(size)

    def seek(self, position: int) -> int:
        """Go to a place in the file."""
        return self._file.seek(position)

    def tell(self) -> int:
        """Return the place in the file."""
        return self._file.tell()


@contextlib.contextmanager
def _inside(to: Path) -> Iterator[int]:
    """Yield the descriptor of the folder in which `to` will be."""
    descriptor = os.open(to.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _entry(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: int, name: str, allowance: Allowance) -> bool | None:
    """Make one file or folder; whether it is a folder, None: it is neither."""
    allowance.enter()
    if member.issparse() or not (member.isreg() or member.isdir()):
        return None
    parts = _parts(member.name)
    with _folder(folder, [name, *parts][:-1]) as parent:
        last = parts[-1] if parts else name
        if member.isdir():
            with contextlib.suppress(FileExistsError):
                os.mkdir(last, 0o755, dir_fd=parent)
            return True
        allowance.take(member.size)
        _write(tar, member, parent, last)
        return False


def _parts(name: str) -> list[str]:
    """Return the parts of a member's name below the root of what was fetched.

    Raises:
        ValueError: it leaves the root, or no file system of ours has such a name.
    """
    root, *parts = name.split("/")
    if root != ROOT or len(parts) > MAX_DEPTH:
        raise ValueError(f"an entry {name[:60]!r}")
    for part in parts:
        if part in {"", ".", ".."} or "\0" in part or len(os.fsencode(part)) > MAX_NAME_BYTES:
            raise ValueError(f"an entry {name[:60]!r}")
    return parts


@contextlib.contextmanager
def _folder(root: int, parts: list[str]) -> Iterator[int]:
    """Yield the descriptor of a folder below another one; missing parts are created, and none may be a link."""
    descriptor = os.dup(root)
    try:
        for part in parts:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=descriptor)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            below = os.open(part, flags, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, parent: int, name: str) -> None:
    source = tar.extractfile(member)
    assert source is not None, "a regular file has content"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, 0o644, dir_fd=parent), "wb") as file:
        left = member.size
        while left:
            part = source.read(min(CHUNK, left))
            if not part:
                raise EOFError("it ends too early")
            file.write(part)
            left -= len(part)
