"""The contents of a bundle: every file is looked at before anything is sent, and read once."""

import errno
import hashlib
import os
import stat
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from torchyard.api.values import size
from torchyard.client.bundle.listing import IGNORE_FILE
from torchyard.client.errors import TorchYardError

MAX_ARCHIVE_BYTES = 8 * 2**20
MAX_BYTES = 64 * 2**20
MAX_FILES = 20_000
MAX_NAME_BYTES, MAX_PATH_BYTES, MAX_DEPTH = 255, 1024, 32
"""Of a part of a path, of a whole path, and of parts in a path. The agent unpacks no others."""
SHOWN = 3
LEAVE_OUT = f"add it to {IGNORE_FILE}, or push the code (`torchyard push`) and use spec.code.image"
_KINDS = {
    stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFBLK: "a device", stat.S_IFCHR: "a device",
}  # fmt: skip


class CodeFile(NamedTuple):
    """One file of a bundle. The data of a link is its target."""

    path: str
    mode: str
    type: str
    data: bytes


class Sized(NamedTuple):
    """A path and its bytes on the disk."""

    path: str
    bytes: int


FILE, LINK = "file", "link"
PLAIN, EXECUTABLE = "0644", "0755"


def contents(folder: Path, paths: Sequence[str]) -> list[CodeFile]:
    """Return the files of a bundle in the order of `paths`.

    Raises:
        TorchYardError: a limit is exceeded, or a file cannot travel; names the file and what to do.
    """
    found = present(folder, paths)
    sized = [Sized(path, status.st_size) for path, status in found]
    if not found:
        raise TorchYardError(f"code: {folder} has no file that may travel", "give the folder that holds your code")
    total = sum(each.bytes for each in sized)
    if len(found) > MAX_FILES:
        raise too_large(total, sized, f"{MAX_FILES:,} files")
    if total > MAX_BYTES:
        raise too_large(total, sized, size(MAX_BYTES))
    root = os.path.realpath(folder)
    return [_read(root, path, status) for path, status in found]


def too_large(count: float, files: Sequence[Sized], limit: str, kind: str = "") -> TorchYardError:
    """Return the error of a bundle that exceeds a limit: its size, its largest files, what to do.

    Args:
        count: bytes of all files.
        files: of the bundle.
        limit: as people read it.
        kind: of the limit, such as ` compressed`.
    """
    what = f"code: {size(count)} in {len(files):,} files, the limit is {limit}{kind}; largest: {largest(files)}"
    return TorchYardError(what, LEAVE_OUT)


def largest(files: Iterable[Sized], count: int = SHOWN) -> str:
    """Return the largest files with their sizes, as people read them."""
    first = sorted(files, key=lambda each: -each.bytes)[:count]
    return ", ".join(f"{each.path} {size(each.bytes)}" for each in first)


def same_but_for_case(paths: Iterable[str]) -> list[tuple[str, str]]:
    """Return pairs of paths that are one file where the file system ignores case, as on a Mac."""
    found: dict[str, str] = {}
    pairs = []
    for path in paths:
        folded = unicodedata.normalize("NFC", path).casefold()
        if folded in found:
            pairs.append((found[folded], path))
        found.setdefault(folded, path)
    return pairs


def digest(files: Iterable[CodeFile]) -> str:
    """Return the SHA-256 over the records of the files, sorted by path: path, mode, type, SHA-256 of the content.

    The archive is no part of it: the same files give other bytes with another zlib. `torchyard_agent.workers.code`
    computes the same digest of a folder.
    """
    found = hashlib.sha256()
    for file in sorted(files, key=lambda each: os.fsencode(each.path)):
        content = hashlib.sha256(file.data).hexdigest()
        found.update(os.fsencode(f"{file.path}\0{file.mode}\0{file.type}\0{content}\n"))
    return found.hexdigest()


def present(folder: Path, paths: Sequence[str]) -> list[tuple[str, os.stat_result]]:
    """Look at each path, without those that git tracks and that are not there any more."""
    found = []
    base = os.fspath(folder)
    links: dict[str, bool] = {"": False}
    for path in paths:
        if path.endswith("/"):
            _refuse_folder(base, path)
        _check_name(path)
        if _is_in_link(base, path, links):
            continue
        try:
            status = os.lstat(f"{base}/{path}")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            _unreadable(path, error)
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFDIR:
            continue  # git tracks a file where there is a folder now; its files are listed by themselves
        if kind not in {stat.S_IFREG, stat.S_IFLNK}:
            raise TorchYardError(f"code: {path} is {_KINDS.get(kind, 'no file')}", f"add it to {IGNORE_FILE}")
        found.append((path, status))
    return found


def _refuse_folder(base: str, path: str) -> NoReturn:
    _check_name(path.rstrip("/"))
    if Path(base, path).is_dir() and not os.access(Path(base, path), os.R_OK | os.X_OK):
        _unreadable(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
    fix = f"add it to {IGNORE_FILE}, or submit it by itself"
    raise TorchYardError(f"code: {path} is a repository of its own (nested or a submodule)", fix)


def _is_in_link(base: str, path: str, links: dict[str, bool]) -> bool:
    """Return whether a folder of a path is a link now: what is behind it may be anywhere, and git tracks it no more.

    Args:
        base: folder of the code.
        path: below it.
        links: the folders that were looked at.
    """
    parent = path.rpartition("/")[0]
    if parent not in links:
        links[parent] = _is_in_link(base, parent, links) or Path(base, parent).is_symlink()
    return links[parent]


def _check_name(path: str) -> None:
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        raise TorchYardError(
            f"code: the name {os.fsencode(path)!r} is not UTF-8", f"rename it, or add it to {IGNORE_FILE}"
        ) from None
    if not path.isprintable() and any(unicodedata.category(letter) in {"Cc", "Cs"} for letter in path):
        raise TorchYardError(f"code: the name {path!r} has a control character", "rename it")
    parts = path.split("/")
    if len(parts) > MAX_DEPTH or len(encoded) > MAX_PATH_BYTES:
        what = f"code: {path[:60]}... has more than {MAX_DEPTH} folders or {MAX_PATH_BYTES} bytes"
        raise TorchYardError(what, f"add it to {IGNORE_FILE}")


def _read(root: str, path: str, before: os.stat_result) -> CodeFile:
    name = f"{root}/{path}"
    try:
        if stat.S_ISLNK(before.st_mode):
            return CodeFile(path, PLAIN, LINK, link_target(root, path))
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(before.st_size + 1)
    except OSError as error:
        _unreadable(path, error)
    if len(data) != before.st_size:
        raise TorchYardError(f"code: {path} changed while it was read", f"try again, or add it to {IGNORE_FILE}")
    return CodeFile(path, EXECUTABLE if before.st_mode & stat.S_IXUSR else PLAIN, FILE, data)


def link_target(root: str, path: str) -> bytes:
    """Return the target of a link.

    Args:
        root: folder of the code, without links.
        path: of the link in it.

    Raises:
        TorchYardError: it leaves the folder.
    """
    name = f"{root}/{path}"
    target = os.readlink(name)  # noqa: PTH115 - as it is written: `./x` stays `./x`
    inside = os.path.commonpath([root, os.path.realpath(name)]) == root
    lexical = os.path.normpath(f"{Path(path).parent}/{target}")
    if target.startswith("/") or not inside or lexical.partition("/")[0] == "..":
        what = f"code: {path} is a link that leaves the folder, to {target}"
        raise TorchYardError(what, f"copy the file, or add the link to {IGNORE_FILE}")
    return os.fsencode(target)


def _unreadable(path: str, error: OSError) -> NoReturn:
    what = f"code: {path} cannot be read ({error.strerror})"
    raise TorchYardError(what, f"make it readable, or add it to {IGNORE_FILE}") from error
