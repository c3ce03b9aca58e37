"""What can be fetched of a job: the entries of its checkpoint folder, each format of an export by itself."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

EXPORT = "export"
MOST_FILES = 100_000
"""Counted of one entry at most: a folder of a million samples must not keep a terminal waiting."""


class Fetchable(NamedTuple):
    """A file or folder, by its path in the checkpoint folder."""

    path: str
    bytes: int
    files: int
    is_folder: bool


def fetchable(root: Path) -> list[Fetchable]:
    """Return what can be fetched from a checkpoint folder, by name; hidden entries and links out of it are not."""
    return [_measured(root, path) for path in sorted(_entries(root)) if path.resolve().is_relative_to(root.resolve())]


def _entries(root: Path) -> Iterator[Path]:
    for entry in root.iterdir() if root.is_dir() else ():
        if entry.name.startswith("."):
            continue
        if entry.name == EXPORT and entry.is_dir():
            yield from (one for one in entry.iterdir() if not one.name.startswith("."))
        else:
            yield entry


def _measured(root: Path, path: Path) -> Fetchable:
    found, files = 0, 0
    for folder, _, names in os.walk(path) if path.is_dir() else [(str(path.parent), [], [path.name])]:
        for name in names:
            try:
                found += Path(folder, name).lstat().st_size
            except OSError:  # it is being replaced at this moment
                continue
            files += 1
        if files >= MOST_FILES:
            break
    return Fetchable(path.relative_to(root).as_posix(), found, files, path.is_dir())


def remove(path: Path) -> None:
    """Delete a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
