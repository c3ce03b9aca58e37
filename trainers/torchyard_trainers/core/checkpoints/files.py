"""Reading files of a folder that others may have written: regular files below it, of a bounded size, and no links."""

import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from torchyard_trainers.core.json_text import parse_json

MAX_RECORD_BYTES = 64 * 1024 * 1024


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file; neither a link, which may lead anywhere, nor a pipe, which may never answer.

    Raises:
        ValueError: it is something else.
        OSError: it cannot be opened.
    """
    if path.is_symlink():
        raise ValueError(f"{path.name} is a symbolic link; a checkpoint holds regular files only")
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError(f"{path.name} is not a regular file")
    return os.fdopen(descriptor, "rb", buffering=0)


def read_bytes(path: Path, limit: int) -> bytes:
    """Read a regular file of at most `limit` bytes.

    Raises:
        ValueError: it is larger, or not a regular file.
        OSError: it cannot be read.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise ValueError(f"{path.name} has {size:,} bytes; at most {limit:,} are read")
        with os.fdopen(os.dup(file.fileno()), "rb") as buffered:
            return buffered.read(limit)


def read_record(path: Path, limit: int = MAX_RECORD_BYTES) -> dict[str, Any]:
    """Read a regular file that holds one JSON object.

    Raises:
        ValueError: it is larger than `limit`, not a regular file, or holds something else.
        OSError: it cannot be read.
    """
    found = parse_json(read_bytes(path, limit))
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} holds no JSON object")  # noqa: TRY004 -- a bad file, not a bad argument
    return found
