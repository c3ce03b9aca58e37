"""The cache of inputs: one folder for each revision of a source, which is whole or absent; and the views of a job.

CACHE/KEY            the files of one revision, read-only
CACHE/KEY.json       their number and bytes
CACHE/KEY.lock       held by the process that fetches them, in whichever pod or job
CACHE/KEY.partial/   what is fetched so far: `files`, and `scratch` of a library
VIEW/NAME            what a program of the job reads
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional

from torchyard_agent.inputs.source import FetchError, Listing, SourceFile

KEPT_SECONDS = 30 * 86400.0
"""How long code and packages stay that no round has used. Inputs stay: they may be data that is nowhere else."""
_CHUNK = 4 << 20


class Entry:
    """One folder of the cache."""

    def __init__(self, cache: Path, key: str) -> None:
        self.folder = cache / key
        self.partial = cache / f"{key}.partial"
        self.files, self.scratch = self.partial / "files", self.partial / "scratch"
        self._manifest, self._lock = cache / f"{key}.json", cache / f"{key}.lock"

    def manifest(self) -> Optional[Dict[str, Any]]:
        """Return number and bytes of the files; None: they are not there as they were fetched."""
        try:
            manifest: Dict[str, Any] = json.loads(self._manifest.read_text(encoding="utf-8"))
            sizes = [path.stat().st_size for path in _files(self.folder)]
        except (OSError, ValueError):
            return None
        if len(sizes) != manifest.get("files") or sum(sizes) != manifest.get("bytes"):
            return None
        with contextlib.suppress(OSError):  # so that what is old is not in use; the folder may be another user's
            os.utime(self._manifest)
        return manifest

    @contextlib.contextmanager
    def locked(self) -> Iterator[bool]:
        """Yield whether this process holds the lock; the kernel releases it with the process."""
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
                yield False
                return
            yield True
        finally:
            os.close(descriptor)

    def path_of(self, file: SourceFile) -> Path:
        """Return where a file is fetched to, in a folder that exists."""
        path = self.files / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def check_space(self, listing: Listing) -> None:
        """Check that what is missing fits on the disk.

        Raises:
            FetchError: it does not.
        """
        if listing.total is None:
            return
        missing = listing.total - sum(path.stat().st_size for path in _files(self.files))
        free = shutil.disk_usage(self.partial).free
        if missing > free:
            raise FetchError(
                f"no space: {missing:,} bytes are missing, and {free:,} are free on the disk of {self.folder.parent}"
            )

    def commit(self, listing: Listing) -> Dict[str, Any]:
        """Move the fetched files to their place, once they are on the disk; return number and bytes."""
        for path in _files(self.files):
            path.chmod(0o444)
            _sync(path)
        for folder, _, _ in os.walk(self.files):
            _sync(Path(folder))
        size = sum(path.stat().st_size for path in _files(self.files))
        manifest = {"files": len(listing.files), "bytes": size}
        shutil.rmtree(self.folder, ignore_errors=True)  # one that was damaged
        temporary = self._manifest.with_suffix(".tmp")
        temporary.write_text(json.dumps(manifest), encoding="utf-8")
        temporary.replace(self._manifest)
        self.files.rename(self.folder)
        _sync(self.folder.parent)
        shutil.rmtree(self.partial, ignore_errors=True)
        return manifest


def expire(cache: Path, used: str, now: Optional[float] = None) -> List[str]:
    """Delete entries of a cache that no round has used for a month, and what was begun then; return their keys.

    Args:
        cache: the folder.
        used: key of an entry that stays.
        now: unix seconds; None: the present.
    """
    before = (time.time() if now is None else now) - KEPT_SECONDS
    deleted = []
    for path in (*cache.glob("*.json"), *cache.glob("*.partial")):
        entry = Entry(cache, path.stem)
        try:
            if path.stem == used or path.stat().st_mtime > before:
                continue
            with entry.locked() as mine:
                if mine:
                    if path.suffix == ".json":
                        path.unlink()
                        deleted.append(path.stem)
                        shutil.rmtree(entry.folder, ignore_errors=True)
                    shutil.rmtree(entry.partial, ignore_errors=True)
        except OSError:
            continue  # another pod was faster
    return deleted


def differs(path: Path, file: SourceFile, report: Callable[[int], None]) -> str:
    """Return how a fetched file differs from what its source says; empty: it does not."""
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        return f"it has {size:,} bytes, not {file.size:,}"
    for algorithm, expected in file.digests.items():
        computed = _digest(path, algorithm, size, report)
        if computed != expected:
            name = {"git": "the blob of git", "sha256": "SHA-256", "md5": "MD5"}[algorithm]
            return f"{name} is {computed}, not {expected}"
    return ""


def _digest(path: Path, algorithm: str, size: int, report: Callable[[int], None]) -> str:
    if algorithm == "git":
        digest = hashlib.sha1(b"blob %d\0" % size)  # noqa: S324 - the name that git gives to content
    else:
        digest = hashlib.new(algorithm, usedforsecurity=algorithm != "md5")
    with path.open("rb") as stream:
        while data := stream.read(_CHUNK):
            digest.update(data)
            report(size)
    return digest.hexdigest()


def show(folder: Path, view: Path) -> None:
    """Make the files of a cached folder appear at `view`, for other processes at once.

    A folder that is mounted there is filled with links; if nothing is mounted, `view` becomes a link.
    """
    if view.is_dir() and not view.is_symlink():
        for path in _files(folder):
            _place(path, view / path.relative_to(folder))
        return
    view.parent.mkdir(parents=True, exist_ok=True)
    _place(folder, view)


def _place(path: Path, link: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    temporary = link.with_name(f".{os.getpid()}.{hashlib.sha256(link.name.encode()).hexdigest()[:16]}")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    if path.is_dir():
        temporary.symlink_to(path)
    else:
        try:
            os.link(path, temporary)
        except OSError:  # of another file system
            temporary.symlink_to(path)
    temporary.replace(link)
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()  # two links to one file: the kernel replaces nothing


def _files(folder: Path) -> Iterator[Path]:
    for root, _, names in os.walk(folder):
        for name in names:
            yield Path(root, name)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
