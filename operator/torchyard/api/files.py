"""Files that users name on a command line: regular files, pipes of a shell, and pipes without a writer."""

import errno
import os
import select
import stat
import time
from pathlib import Path

STANDARD_INPUT = "/dev/stdin"
SILENCE_SECONDS = 10.0
CHUNK = 64 * 1024


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
