"""The user's code of a round: a folder named by its digest, unpacked from parts and verified before each round.

Nothing that arrives is trusted: the digest is in the job, and names, kinds and sizes are looked at before a byte is
written. A path that is used for other code again would serve stale bytecode, so every digest has its own folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import stat
import sys
import tarfile
import tempfile
import time
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple, cast

MAX_ARCHIVE_BYTES = 8 << 20
MAX_BYTES = 64 << 20
MAX_FILES = 20_000
MAX_FETCHED_BYTES, MAX_FETCHED_FILES = 4 << 30, 100_000
"""Of code from git, an image or a claim, which no archive has carried."""
MAX_NAME_BYTES, MAX_PATH_BYTES, MAX_DEPTH = 255, 1024, 32
MAX_HEADER_BYTES = 1 << 16
PARTS = "part-"
"""Names of the files that an archive is cut into begin so: part-0000, part-0001, ..."""
PUSHED = "parts"
PUSH = ".push-"
MAX_PUSHED = 2
"""Bundles of which the archive is kept: what runs, and what runs next."""
FOLDER = "TORCHYARD_CODE_DIR"
"""In the environment of workers: the folder of their code."""
PACKAGES = "TORCHYARD_PACKAGES_DIR"
"""In the environment of workers: the folder of packages that were installed for their code, if any."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_TAR_BYTES = MAX_BYTES + MAX_FILES * 3072
"""Of an archive: each entry has at most three headers and is filled up to a block."""
_GZIP = 31
_CHUNK = 1 << 20
_PROTECTED = 0o555
_ABANDONED_SECONDS = 600.0


class MissingError(ValueError):
    """The code is not here yet."""


class MismatchError(ValueError):
    """What arrived is not the code of the job."""


class Code(NamedTuple):
    """Where the code of a round is and comes from.

    Attributes:
        digest: of the files.
        root: folder of the unpacked bundles, each in a folder named by its digest. What was pushed into it is in
            `root/parts/DIGEST`.
        mount: folder with the parts, or with a folder of parts for each digest, that this pod was started with.
    """

    digest: str
    root: Path
    mount: Path

    @property
    def folder(self) -> Path:
        """Where it is unpacked."""
        return self.root / self.digest

    def parts(self) -> List[Path]:
        """Return the files of the archive, in order; empty: none has arrived."""
        places = (self.root / PUSHED / self.digest, self.mount / self.digest, self.mount)
        return next((found for place in places if (found := sorted(place.glob(f"{PARTS}*")))), [])


def ready(code: Code) -> Path:
    """Return the folder of the code of a round, verified; it is unpacked if it is not there or was changed.

    Raises:
        MissingError: the parts are not there.
        MismatchError: they hold other code than the job names, or what no bundle holds.
        OSError: the folder cannot be written.
    """
    if not _DIGEST.fullmatch(code.digest):
        raise MismatchError(f"`{code.digest[:80]}` is not a SHA-256 digest")
    with locked(code.root):
        _remove_others(code)
        if not _is_whole(code):
            remove(code.folder)
            unpack(code, code.parts())
    return code.folder


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """Hold the folder of the unpacked code, which pods of one machine share."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def receive(code: Code, source: IO[bytes], size: int) -> None:
    """Take code that is pushed into this pod for a later round: verify it, unpack it, and keep its archive.

    Args:
        code: that is pushed.
        source: of the archive.
        size: of the archive, bytes.

    Raises:
        MismatchError: what arrives is other code, or what no bundle holds.
        OSError: it cannot be written.
    """
    if not _DIGEST.fullmatch(code.digest):
        raise MismatchError(f"`{code.digest[:80]}` is not a SHA-256 digest")
    if not 0 < size <= MAX_ARCHIVE_BYTES:
        raise MismatchError("the archive is larger than a bundle can be")
    code.root.mkdir(parents=True, exist_ok=True)
    for path in _oldest_first(code.root):
        if path.name.startswith(PUSH) and time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
            remove(path)
    temporary = Path(tempfile.mkdtemp(prefix=PUSH, dir=code.root))
    try:
        archive = temporary / f"{PARTS}0000"
        _copy(source, archive, size)
        with locked(code.root):
            if not _is_whole(code):
                remove(code.folder)
                unpack(code, [archive])
            target = code.root / PUSHED / code.digest
            target.parent.mkdir(exist_ok=True)
            for former in _oldest_first(target.parent)[: 1 - MAX_PUSHED]:
                remove(former)
            remove(target)
            temporary.rename(target)
    finally:
        remove(temporary)


def pushed(root: Path) -> List[str]:
    """Return the digests of the code that was pushed into this pod."""
    return [path.name for path in _oldest_first(root / PUSHED)]


def _oldest_first(folder: Path) -> List[Path]:
    found = []
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            with contextlib.suppress(OSError):
                found.append((path.stat().st_mtime, path))
    return [path for _, path in sorted(found)]


def _copy(source: IO[bytes], target: Path, size: int) -> None:
    with target.open("wb") as file:
        while size:
            data = source.read(min(_CHUNK, size))
            if not data:
                raise MismatchError("the archive ends too early")
            file.write(data)
            size -= len(data)


def _is_whole(code: Code) -> bool:
    try:
        return code.folder.is_dir() and digest_of(code.folder) == code.digest
    except MismatchError:
        return False


def unpack(code: Code, names: List[Path]) -> None:
    """Unpack the parts of an archive into the folder of the digest, which appears at once and complete."""
    if not names:
        raise MissingError(f"the code {code.digest[:12]} has not arrived")
    temporary = Path(tempfile.mkdtemp(prefix=".unpack-", dir=code.root))
    try:
        tree = temporary / "tree"
        tree.mkdir()
        with tempfile.TemporaryFile(dir=temporary) as archive:
            _decompress(names, archive)
            archive.seek(0)
            extract(archive, tree)
        found = digest_of(tree)
        if found != code.digest:
            what = f"the code that arrived has digest {found[:12]}, and the job names {code.digest[:12]}"
            raise MismatchError(what)
        protect(tree)
        move(tree, code.folder)
    finally:
        remove(temporary)


def enter(code: Code, working_folder: str, env: Mapping[str, str], packages: Optional[str] = None) -> Dict[str, str]:
    """Verify the code of a round, make it the working directory, and return the variables that lead programs to it.

    Args:
        code: of the round.
        working_folder: `spec.workingDir`: below the code, or absolute; empty: the folder of the code.
        env: of the round.
        packages: folder of installed requirements; they come after the code.

    Raises:
        MissingError: see `ready`.
        MismatchError: see `ready`.
        OSError: the working directory does not exist.
    """
    folder = ready(code)
    os.chdir(folder / working_folder)
    path = [each for each in env.get("PYTHONPATH", "").split(os.pathsep) if each]
    added = [str(folder), *([packages] if packages else [])]
    found = {FOLDER: str(folder), "PYTHONPATH": os.pathsep.join(_after_hooks(path, added, env))}
    if packages:
        # Programs of the image run with the packages, too, by PYTHONPATH: only those that it lacks have to be found.
        found.update({PACKAGES: packages, "PATH": os.pathsep.join([env.get("PATH", os.defpath), f"{packages}/bin"])})
    return found


def enter_as_forked(env: Mapping[str, str], folder: str) -> None:
    """Enter the working directory of a round whose process was forked before it was known; find modules there.

    Args:
        env: of the round.
        folder: its working directory.
    """
    os.chdir(folder)
    named = (env.get(name) or "" for name in (FOLDER, PACKAGES))
    added = [each for each in named if each and each not in sys.path]
    if added:
        sys.path[:] = _after_hooks(sys.path, added, env)


def _after_hooks(path: List[str], folders: List[str], env: Mapping[str, str]) -> List[str]:
    """Insert folders into a path: only our hooks stay before them."""
    cut = int(path[:1] == [str(Path(env.get("TORCHYARD_RUN_DIR", ""), "hooks"))])
    return [*path[:cut], *folders, *path[cut:]]


def digest_of(folder: Path, report: Optional[Callable[[int, int], None]] = None) -> str:
    """Return the digest of the files of a folder: SHA-256 over sorted records of path, mode, type, SHA-256 of content.

    Args:
        folder: of the code.
        report: called with the number of files and bytes after each file.

    Raises:
        MismatchError: the folder holds what no code holds.
    """
    found = hashlib.sha256()
    records = []
    total = 0
    for path, status in _files(folder):
        name = os.fsencode(os.path.relpath(path, folder))
        if stat.S_ISLNK(status.st_mode):
            target = os.readlink(path)  # noqa: PTH115 - as it is written
            kind, mode, content = b"link", b"0644", hashlib.sha256(os.fsencode(target)).hexdigest()
        elif stat.S_ISREG(status.st_mode):
            mode = b"0755" if status.st_mode & stat.S_IXUSR else b"0644"
            kind, content = b"file", _digest_of_file(path, status.st_size)
        else:
            raise MismatchError(f"{name.decode('utf-8', 'replace')} is neither a file nor a link")
        records.append((name, b"\0".join((name, mode, kind, content.encode())) + b"\n"))
        total += status.st_size
        if report is not None:
            report(len(records), total)
    for _, record in sorted(records):
        found.update(record)
    return found.hexdigest()


def protect(folder: Path) -> None:
    """Take the right to write from everybody, so that no program edits the code of a round by accident."""
    for root, _, names in os.walk(folder, topdown=False):
        for path in (Path(root, name) for name in names):
            status = path.lstat()
            if not stat.S_ISLNK(status.st_mode):
                path.chmod(status.st_mode & 0o555)
        Path(root).chmod(_PROTECTED)


def remove(folder: Path) -> None:
    """Delete a folder that may be protected, or a link to one; nothing happens if it is not there."""
    if folder.is_symlink():
        folder.unlink()
        return
    with contextlib.suppress(OSError):
        for root, _, _ in os.walk(folder):
            Path(root).chmod(0o755)
    shutil.rmtree(folder, ignore_errors=True)


def _remove_others(code: Code) -> None:
    """Delete the code of former rounds, of which no process is left in this pod; what was pushed may be of the next."""
    kept = {code.digest, PUSHED, *pushed(code.root)}
    for path in code.root.iterdir():
        if path.is_dir() and path.name not in kept and not path.name.startswith(PUSH):
            remove(path)


def move(source: Path, target: Path) -> None:
    """Rename a protected folder into another one, which needs the right to write to itself."""
    source.chmod(0o755)
    source.rename(target)
    target.chmod(_PROTECTED)


def _files(folder: Path) -> Iterator[Tuple[str, os.stat_result]]:
    """Yield everything in a folder that is no folder; stop with an error where no code is so large."""
    pending, count, total = [str(folder)], 0, 0
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                    continue
                status = entry.stat(follow_symlinks=False)
                count, total = count + 1, total + status.st_size
                if count > MAX_FETCHED_FILES or total > MAX_FETCHED_BYTES:
                    limits = f"{MAX_FETCHED_FILES:,} files or {MAX_FETCHED_BYTES >> 30} GiB"
                    raise MismatchError(f"the code has more than {limits}")
                yield entry.path, status


def _digest_of_file(path: str, size: int) -> str:
    found = hashlib.sha256()
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        left = size + 1  # a file that grows while it is read is another one
        while left > 0:
            data = file.read(min(_CHUNK, left))
            if not data:
                break
            found.update(data)
            left -= len(data)
    return found.hexdigest()


def _decompress(names: List[Path], target: IO[bytes]) -> None:
    """Write the archive that the parts hold; neither they nor what they expand to may be larger than a bundle."""
    decompressor, received, written = zlib.decompressobj(_GZIP), 0, 0
    try:
        for name in names:
            with name.open("rb") as file:
                while True:
                    data = file.read(_CHUNK)
                    if not data:
                        break
                    received += len(data)
                    while data:
                        plain = decompressor.decompress(data, _CHUNK)
                        data = decompressor.unconsumed_tail
                        written += len(plain)
                        if received > MAX_ARCHIVE_BYTES or written > _TAR_BYTES:
                            raise MismatchError("the archive is larger than a bundle can be")
                        target.write(plain)
    except zlib.error as error:
        raise MismatchError(f"the archive is damaged ({error})") from error
    if not decompressor.eof:
        raise MismatchError("the archive is damaged (it ends too early)")


class _Bounded:
    """A file of which no header is read that would take much memory."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        if not 0 <= size <= max(MAX_HEADER_BYTES, _CHUNK):
            raise tarfile.ReadError(f"a header of {size} bytes")
        return self._file.read(size)

    def seek(self, position: int) -> int:
        return self._file.seek(position)

    def tell(self) -> int:
        return self._file.tell()


def extract(archive: IO[bytes], tree: Path, most: int = MAX_FILES) -> None:
    """Write the files of an archive, then its links: no file is ever written through a link.

    Raises:
        MismatchError: it is damaged, or has more than `most` entries or one that no code has.
    """
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", _Bounded(archive)), mode="r:", encoding="utf-8") as tar:
            members: List[tarfile.TarInfo] = []
            for member in tar:
                members.append(member)
                if len(members) > most:
                    raise MismatchError(f"the archive has more than {most} entries")
            check([(member.name, kind_of(member), member.linkname) for member in members])
            for member in members:
                if member.isreg():
                    _write(tar, member, tree)
            for member in members:
                if member.issym():
                    (tree / member.name).parent.mkdir(parents=True, exist_ok=True)
                    (tree / member.name).symlink_to(member.linkname)
    except (tarfile.TarError, EOFError, OverflowError, RecursionError, UnicodeError) as error:
        raise MismatchError(f"the archive is damaged ({error})") from error
    root = os.path.realpath(tree)
    for member in members:
        if member.issym() and os.path.commonpath([root, os.path.realpath(tree / member.name)]) != root:
            raise MismatchError(f"{member.name} is a link that leaves the folder")


def kind_of(member: Any) -> str:
    """Return the type of a record; empty: no bundle has such an entry."""
    if member.issparse():
        return ""
    return "file" if member.isreg() else "link" if member.issym() else ""


def check(entries: List[Tuple[str, str, str]]) -> None:
    """Check names, kinds and targets of links before anything is written (pure).

    Args:
        entries: path, type and target of each.

    Raises:
        MismatchError: no bundle has such an entry.
    """
    paths = {name for name, _, _ in entries}
    if len(paths) != len(entries):
        raise MismatchError("the archive names a file twice")
    for name, kind, target in entries:
        parts = name.split("/")
        bad = any(part in ("", ".", "..") or len(os.fsencode(part)) > MAX_NAME_BYTES for part in parts)
        if bad or len(parts) > MAX_DEPTH or len(os.fsencode(name)) > MAX_PATH_BYTES or _has_controls(name):
            raise MismatchError(f"the archive has an entry {name[:60]!r}")
        if not kind:
            raise MismatchError(f"{name} is neither a file nor a link")
        if any("/".join(parts[:count]) in paths for count in range(1, len(parts))):
            raise MismatchError(f"{name} lies in a file")
        if kind == "link":
            way = os.path.normpath(f"{PurePosixPath(name).parent}/{target}")
            if not target or target.startswith("/") or way.split("/")[0] == "..":
                raise MismatchError(f"{name} is a link that leaves the folder")


def _has_controls(name: str) -> bool:
    return any(letter < " " or "\x7f" <= letter <= "\x9f" for letter in name)


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, tree: Path) -> None:
    path = tree / member.name
    path.parent.mkdir(parents=True, exist_ok=True)
    source = tar.extractfile(member)
    assert source is not None, "a regular file has content"
    mode = 0o755 if member.mode & stat.S_IXUSR else 0o644
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        left = member.size
        while left:
            data = source.read(min(_CHUNK, left))
            if not data:
                raise EOFError("it ends too early")
            file.write(data)
            left -= len(data)
        os.fchmod(file.fileno(), mode)
