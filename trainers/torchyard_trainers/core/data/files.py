"""Reads byte ranges of a file, on this machine or behind any URL that fsspec understands."""

import errno
import hashlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import fsspec

from torchyard_trainers.core.exits import DataError, StorageError, TrainerError
from torchyard_trainers.core.hub import path_fix

BLOCK = 4 << 20  # bytes that a pass over a file reads at once
# A fingerprint of a large file covers this many blocks of it, evenly spaced, with the first and the last.
SAMPLES, SAMPLE = 64, 1 << 16
ATTEMPTS = 3
PAUSE = 1.0  # seconds before the second attempt, twice that before the third
# One of the parts of a set: `train-00001-of-00003.parquet`, the first is 0.
_NUMBERED = re.compile(r"(?P<stem>.*-)(?P<number>\d{5})(?P<rest>-of-(?P<count>\d{5})\..*)")
MOST_PARTS = 10_000
_REMOTE = re.compile(r"^[a-z0-9+.-]+(::|://)", re.IGNORECASE)


class File:
    """A file that is only read; it can be used in forked processes.

    A file of this machine is read through a descriptor without a shared position. A remote one is requested by byte
    ranges; each process has its own connection, since fsspec keeps file systems by process.

    Raises:
        DataError: there is no such file, it must not be read, or a package for its kind of URL is missing.
        StorageError: reading fails for a reason that may pass.
    """

    def __init__(self, url: str | os.PathLike[str]) -> None:
        """Refer to a path or URL, for example `s3://bucket/train.jsonl`."""
        self.url = os.fspath(url)
        self.is_remote = bool(_REMOTE.match(self.url)) and not self.url.startswith("file://")
        self.path = self.url.removeprefix("file://")
        self.name = self.url.rstrip("/").rsplit("/", 1)[-1].split("?")[0]

    @cached_property
    def size(self) -> int:
        """The length in bytes."""
        if not self.is_remote:
            return int(self._attempt(lambda: os.fstat(self._descriptor).st_size))
        file_system, path = self._remote()
        size = self._attempt(lambda: file_system.size(path))
        if size is None:
            raise DataError(f"{self.url}: the server does not report the size of the file; copy it to a volume")
        return int(size)

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes of a range; fewer at the end of the file."""
        end = min(end, self.size)
        if start >= end:
            return b""
        if self.is_remote:
            file_system, path = self._remote()
            found = self._attempt(lambda: file_system.cat_file(path, start=start, end=end))
        else:
            found = self._attempt(lambda: os.pread(self._descriptor, end - start, start))
        if len(found) != end - start:
            raise DataError(
                f"{self.url}: {len(found)} bytes at {start}, expected {end - start}: was the file replaced?"
            )
        return bytes(found)

    def blocks(self, size: int = BLOCK) -> Iterator[bytes]:
        """Yield the content in blocks."""
        for start in range(0, self.size, size):
            yield self.read(start, start + size)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of size and content; of a file above 4 MiB, of evenly spaced parts of the content."""
        digest = hashlib.blake2b(str(self.size).encode(), digest_size=16)
        if self.size <= SAMPLES * SAMPLE:
            starts = range(0, self.size, SAMPLE)
        else:
            starts = [(self.size - SAMPLE) * part // (SAMPLES - 1) for part in range(SAMPLES)]  # type: ignore[assignment]
        for start in starts:
            digest.update(self.read(start, start + SAMPLE))
        return digest.hexdigest()

    def open(self) -> Any:
        """Return a seekable file object of this process, for a library that needs one."""
        if not self.is_remote:
            return self._attempt(lambda: os.fdopen(self._opened(), "rb"))
        file_system, path = self._remote()
        return self._attempt(lambda: file_system.open(path, "rb"))

    @cached_property
    def _descriptor(self) -> int:
        return self._opened()

    def _opened(self) -> int:
        """Open a file of this machine; a pipe would be waited for, and a device has no end."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            if error.errno not in (errno.ENAMETOOLONG, errno.ELOOP):
                raise
            raise DataError(f"{self.url}: {error.strerror}; check the path") from error
        kind = os.fstat(descriptor).st_mode
        if stat.S_ISREG(kind) or stat.S_ISDIR(kind):  # reading a folder says what it is
            return descriptor
        os.close(descriptor)
        raise DataError(f"{self.url}: neither a file nor a folder; copy its content into a file")

    def _remote(self) -> tuple[Any, str]:
        try:
            return fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise DataError(f"{self.url}: {error}; add the package to the image or use another URL") from error

    def _attempt(self, act: Callable[[], Any]) -> Any:
        """Run `act`; repeat it after errors of a remote store that may pass."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return act()
            except (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError) as error:
                what = error.strerror or "it does not exist"
                raise DataError(f"{self.url}: {what}; {path_fix(self.url)}") from error
            except (TrainerError, ImportError):
                raise
            except Exception as error:
                if not self.is_remote and not isinstance(error, OSError):
                    raise
                if attempt == ATTEMPTS or not self.is_remote:
                    cause = f"{type(error).__name__}: {error}"
                    raise StorageError(f"{self.url} cannot be read: {cause}; repair the volume or network") from error
                time.sleep(PAUSE * attempt)
        raise AssertionError("ATTEMPTS is at least 1")

    def __del__(self) -> None:
        descriptor = self.__dict__.get("_descriptor")
        if descriptor is not None:
            os.close(descriptor)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the descriptor behind: another process opens the file itself."""
        return {name: value for name, value in self.__dict__.items() if name != "_descriptor"}


def expand(urls: list[str]) -> list[File]:
    """Return the files of paths and URLs, each of which may have wildcards; those of one pattern sorted by name.

    Raises:
        DataError: nothing matches, or one of several numbered files is missing.
    """
    found: list[File] = []
    for url in urls:
        is_local = not _REMOTE.match(url)
        if not any(sign in url for sign in "*[") and not ("?" in url and is_local):
            found.append(File(url))
            continue
        if is_local and os.path.isfile(url):  # noqa: PTH113 -- its name has such a character
            found.append(File(url))
            continue
        file_system, path = File(url)._remote()  # noqa: SLF001
        matches = sorted(file_system.glob(path))
        if not matches:
            raise DataError(f"{url}: no file matches; check the path, and that every pod can read it")
        if missing := _missing(matches, path):
            raise DataError(f"{url}: {missing} is missing, but others of its files are there; copy it again")
        found += [File(file_system.unstrip_protocol(str(match))) for match in matches]
    return found


def _missing(matches: Sequence[str], pattern: str) -> str:
    """Return the first missing part of a numbered set, such as `NAME-00001-of-00003`; "" if the set is complete.

    A pattern that names some of the files only, such as `*-0000[01]-of-00003`, misses nothing.
    """
    names = {match.rsplit("/", 1)[-1] for match in matches}
    wanted = pattern.rsplit("/", 1)[-1]
    for name in sorted(names):
        numbered = _NUMBERED.fullmatch(name)
        if numbered is None or int(numbered["count"]) > MOST_PARTS:
            continue
        for number in range(int(numbered["count"])):
            part = f"{numbered['stem']}{number:0{len(numbered['number'])}}{numbered['rest']}"
            if part not in names and fnmatchcase(part, wanted):
                return part
    return ""
