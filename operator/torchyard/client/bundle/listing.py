"""Which files of a folder travel: those that git does not ignore, edited by `.torchyardignore`.

Without git the same files are found: `.gitignore` files are read here, too.
"""

import os
import re
import stat
import subprocess
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import NamedTuple

from torchyard.client.bundle.ignore import IgnoreRules, any_of, ignored, patterns
from torchyard.client.errors import TorchYardError

IGNORE_FILE = ".torchyardignore"
CACHES = (
    ".git", ".venv", "venv", "__pycache__", "node_modules", ".mypy_cache", ".ruff_cache", ".pytest_cache",
    "*.egg-info", ".torchyard",
)  # fmt: skip
"""Never part of a bundle unless git tracks them or `.torchyardignore` names them with `!`."""
MAX_WALKED = 200_000
_GIT = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false")
_SECONDS = 60
_SUBMODULE = "160000 "
_UNREAD = re.compile(rb"^warning: could not open directory '([^\n]+/)': ", re.MULTILINE)
_LOCATIONS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")


class Listing(NamedTuple):
    """The files of a folder that travel."""

    paths: list[str]
    """Relative to the folder, sorted by bytes. A folder that cannot travel, because it is a repository of its own or
    cannot be read, is one path, with a slash at its end."""
    left_out: list[str]
    """Files and folders (with a slash at the end) that do not travel."""


def listing(folder: Path) -> Listing:
    """Return the files of a folder that travel, and what is left out.

    Raises:
        TorchYardError: the folder cannot be listed, or a pattern of `.torchyardignore` is invalid.
    """
    if not folder.is_dir():
        raise TorchYardError(f"code: {folder} is not a folder", "give the folder that holds your code")
    by_git = _of_git(folder)
    found = by_git if by_git is not None else _of_walk(folder)
    edited = _edited(folder, found)
    left_out = _in_whole_folders(edited.left_out, edited.paths)
    return Listing(sorted(edited.paths, key=os.fsencode), sorted(left_out, key=os.fsencode))


def _in_whole_folders(left_out: Sequence[str], paths: Sequence[str]) -> set[str]:
    """Return what is left out; of a folder of which no file travels, only the folder."""
    entered = {""}
    for path in paths:
        parent = _parent(path)
        while parent not in entered:
            entered.add(parent)
            parent = _parent(parent)
    return {_topmost(path, entered) for path in left_out}


def _parent(path: str) -> str:
    return path[: path.rstrip("/").rfind("/") + 1]


def _topmost(path: str, entered: AbstractSet[str]) -> str:
    """Return the path, or the first folder on the way to it of which no file travels."""
    end = path.find("/") + 1
    while end and path[:end] in entered:
        end = path.find("/", end) + 1
    return path[:end] or path


def git(folder: Path, *words: str) -> bytes | None:
    """Return what a git command prints; None: it failed, or there is no git."""
    done = _run(folder, *words)
    return done.stdout if done is not None and done.returncode == 0 else None


def _run(folder: Path, *words: str) -> subprocess.CompletedProcess[bytes] | None:
    environment = {name: value for name, value in os.environ.items() if name not in _LOCATIONS}
    try:
        return subprocess.run(
            [*_GIT, *words],
            cwd=folder,
            env={**environment, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def files_of(folder: Path) -> Iterator[str]:
    """Yield the paths of all files of a folder."""
    for below, names, _ in _walk(folder):
        yield from (os.path.join(folder, below, name) for name in names)  # noqa: PTH118 - many


def _of_git(folder: Path) -> Listing | None:
    """List a folder of a repository; None: there is no git, or the repository around it ignores the whole folder."""
    others = ("ls-files", "-z", "--others", "--exclude-standard", *(f"--exclude={name}" for name in CACHES))
    tracked = git(folder, "ls-files", "-z", "--cached", "--stage")
    found = _run(folder, *others)
    untracked = found.stdout if found is not None and found.returncode == 0 else None
    if not tracked and not untracked:
        return None
    staged = (record.partition("\t") for record in _split(tracked or b""))
    paths = {f"{path}/" if modes.startswith(_SUBMODULE) else path for modes, _, path in staged}
    ignored = git(folder, *others, "--ignored", "--directory")
    unread = _unread(folder, found.stderr) if found is not None else []
    return Listing([*paths.union(_split(untracked or b""), unread)], _split(ignored or b""))


def _unread(folder: Path, warnings: bytes) -> list[str]:
    """Return the folders that git could not read, and lists nothing of."""
    unread = [os.fsdecode(each) for each in _UNREAD.findall(warnings)]
    if not unread:
        return []
    prefix = os.fsdecode(git(folder, "rev-parse", "--show-prefix") or b"").rstrip("\n")
    return [each.removeprefix(prefix) for each in unread if each.startswith(prefix)]


def _split(output: bytes) -> list[str]:
    return [os.fsdecode(each) for each in output.split(b"\0") if each]


def _of_walk(folder: Path) -> Listing:
    """List a folder without git, as git would: with the `.gitignore` files of each folder."""
    paths: list[str] = []
    left_out: list[str] = []
    rules: dict[str, list[IgnoreRules]] = {"": [IgnoreRules("", CACHES, "")]}
    left_out_at_last = _left_out_at_last(folder)
    for below, names, folders in _walk(folder):
        active = rules.pop(below)
        if ".gitignore" in names:
            file = folder / below / ".gitignore"
            active = [*active, IgnoreRules(below, _lines(file), str(file))]
        for name in names:
            path = f"{below}{name}"
            (left_out if ignored(path, name, active) else paths).append(path)
        for name in [*folders]:
            path = f"{below}{name}/"
            if ignored(path, f"{name}/", active) or left_out_at_last(path):
                left_out.append(path)
                folders.remove(name)
            elif _cannot_travel(folder / path):
                paths.append(path)
                folders.remove(name)
            else:
                rules[path] = active
    return Listing(paths, left_out)


def _cannot_travel(folder: Path) -> bool:
    """Return whether a folder is listed as one path: a nested repository, or one that cannot be read."""
    return os.path.lexists(folder / ".git") or not os.access(folder, os.R_OK | os.X_OK)


def _walk(folder: Path, below: str = "") -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each folder: its path with a slash at the end, names that are no folders, and folders to enter."""
    pending, seen = [below], 0
    while pending:
        current = pending.pop()
        names: list[str] = []
        folders: list[str] = []
        try:
            with os.scandir(folder / current) as entries:
                for entry in entries:
                    (folders if entry.is_dir(follow_symlinks=False) else names).append(entry.name)
        except OSError as error:
            where = folder / current
            raise TorchYardError(
                f"code: {where} cannot be read ({error.strerror})", f"add it to {IGNORE_FILE}"
            ) from error
        seen += len(names) + len(folders)
        if seen > MAX_WALKED:
            what = f"code: {folder} has more than {MAX_WALKED:,} files"
            raise TorchYardError(what, f"give the folder that holds your code, or leave folders out by {IGNORE_FILE}")
        yield current, names, folders
        pending += [f"{current}{name}/" for name in folders]


def _left_out_at_last(folder: Path) -> Callable[[str], bool]:
    """Return a function of a folder's path: whether no file in it travels, whatever is in it, by `.torchyardignore`."""
    file = folder / IGNORE_FILE
    if not os.path.lexists(file):
        return lambda _path: False
    lines = _lines(file)
    spec, starts = patterns(lines, str(file)), _literal_starts(lines)
    return lambda path: bool(spec.check_file(path).include) and not _is_reachable(path, starts)


def _edited(folder: Path, found: Listing) -> Listing:
    """Apply `.torchyardignore`, the last word: it leaves files out, and `!pattern` brings ignored ones back."""
    file = folder / IGNORE_FILE
    if not os.path.lexists(file):
        return found
    lines = _lines(file)
    spec, some = patterns(lines, str(file)), any_of(lines)
    paths = [path for path in found.paths if some is None or not some.match(path) or not spec.check_file(path).include]
    left_out = [*found.left_out, *set(found.paths).difference(paths)]
    starts = _literal_starts(lines)
    if not starts:
        return Listing(paths, left_out)
    again = {path for path in _files_below(folder, left_out, starts) if spec.check_file(path).include is False}
    return Listing([*again.union(paths)], [path for path in left_out if path not in again])


def _literal_starts(lines: Sequence[str]) -> list[str]:
    """Return how the paths begin that `!pattern` may bring back, up to the first wildcard; empty text: any path."""
    return [_literal(line.strip()[1:]) for line in lines if line.strip().startswith("!")]


def _literal(pattern: str) -> str:
    if "/" not in pattern.rstrip("/"):
        return ""  # matches at any depth
    cut = next((place for place, letter in enumerate(pattern) if letter in "*?[\\"), len(pattern))
    return pattern[:cut].removeprefix("/")


def _files_below(folder: Path, left_out: Sequence[str], starts: Sequence[str]) -> Iterator[str]:
    """Yield the left out files whose paths may begin so; folders that no pattern can reach are not entered."""
    for path in left_out:
        if not _is_reachable(path, starts) or path == ".git/":
            continue
        if not path.endswith("/"):
            yield path
            continue
        for below, names, folders in _walk(folder, path):
            yield from (f"{below}{name}" for name in names)
            folders[:] = [name for name in folders if _is_reachable(f"{below}{name}/", starts)]


def _is_reachable(path: str, starts: Sequence[str]) -> bool:
    return any(path.startswith(start) or start.startswith(path) for start in starts)


def _lines(file: Path) -> list[str]:
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise TorchYardError(f"code: {file} is not a file", "write patterns into it, as in a .gitignore file")
        return file.read_text("utf-8", "surrogateescape").splitlines()
    except OSError as error:
        raise TorchYardError(f"code: {file} cannot be read ({error.strerror})", "make it readable") from error
