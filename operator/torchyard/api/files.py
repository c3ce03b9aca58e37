"""Files that users name on a command line, pipes among them, and files of folders that others may have written."""

import contextlib
import errno
import os
import select
import stat
import time
from pathlib import Path
from typing import BinaryIO

STANDARD_INPUT = "/dev/stdin"
SILENCE_SECONDS = 10.0
CHUNK = 64 * 1024


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; a pipe or a device in its place would block, or never end.

    Raises:
        OSError: it cannot be opened, or is not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path, most: int) -> bytes:
    """Return the content of a regular file of at most `most` bytes.

    Raises:
        OSError: it cannot be read, is larger, or is not a regular file.
    """
    with open_regular(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"larger than {most} bytes", str(path))
    return data


def read_end(path: Path, most: int) -> bytes:
    """Return the last bytes of a regular file, at most `most`.

    Raises:
        OSError: it cannot be read, or is not a regular file.
    """
    with open_regular(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most))
        return file.read(most)


def read_bounded(path: Path, most: int) -> bytes:
    """Return the content of a file, at most `most` bytes.

    A pipe, as of `<(...)`, may be silent for ten seconds; standard input may be silent forever.

    Raises:
        OSError: it cannot be read, or nothing comes from it.
    """
    if str(path) == STANDARD_INPUT:
        with path.open("rb") as stream:
            return stream.read(most)
    # Without waiting for a writer: a named pipe may never get one.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            with os.fdopen(os.dup(descriptor), "rb") as stream:
                return stream.read(most)
        return _from_pipe(descriptor, most)
    finally:
        os.close(descriptor)


def _from_pipe(descriptor: int, most: int) -> bytes:
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    begun, found = time.monotonic(), bytearray()
    while len(found) < most:
        try:
            part = os.read(descriptor, min(CHUNK, most - len(found)))
        except BlockingIOError:
            if not poll.poll(1000 * SILENCE_SECONDS) or time.monotonic() - begun > 6 * SILENCE_SECONDS:
                raise TimeoutError(0, f"nothing came from it for {SILENCE_SECONDS:.0f} s") from None
            continue
        if not part:  # no process writes any more, or yet
            break
        found += part
    return bytes(found)


def write_whole(path: Path, text: str, *, replace: bool = False) -> None:
    """Write a text file; one that cannot be written to its end, on a full disk for example, is not left behind.

    Args:
        path: of the file.
        text: its content.
        replace: whether there may be a file of that name.

    Raises:
        FileExistsError: there is one.
        OSError: it cannot be written; names the path.
    """
    try:
        with path.open("wb" if replace else "xb") as file:
            file.write(text.encode())
    except OSError as error:
        if error.filename is None:  # of a write, after the file was opened
            path.unlink(missing_ok=True)
            error.filename = str(path)
        raise


def remove_tree(folder: Path) -> None:
    """Delete a folder with all that is in it, as far as possible; folders of unpacked code are read-only.

    Of a link, only the link: where it leads, modes and files stay.
    """
    import shutil  # noqa: PLC0415 - only those who delete need it

    if folder.is_symlink():
        folder.unlink(missing_ok=True)
        return
    for root, _, _ in os.walk(folder):
        with contextlib.suppress(OSError):
            Path(root).chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)
