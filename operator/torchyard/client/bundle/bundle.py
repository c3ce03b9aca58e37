"""A folder as a bundle, and what is printed of it."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torchyard.api.values import size
from torchyard.client.bundle.archive import archive
from torchyard.client.bundle.contents import CodeFile, Sized, contents, digest, largest, same_but_for_case
from torchyard.client.bundle.listing import files_of, listing
from torchyard.client.bundle.provenance import Provenance, provenance

_SHOWN = 5


class Bundle(NamedTuple):
    """The code of a job, ready to travel."""

    digest: str
    files: list[CodeFile]
    left_out: list[str]
    provenance: Provenance

    @property
    def total(self) -> int:
        """Bytes of all files."""
        return sum(len(file.data) for file in self.files)

    def archived(self) -> bytes:
        """Return the archive. Raises `TorchYardError` where it is too large to travel."""
        return archive(self.files)

    def sentences(self) -> list[str]:
        """Return what every submission prints: files, size, the largest ones, what was left out, and warnings."""
        sized = [Sized(file.path, len(file.data)) for file in self.files]
        count = f"{len(sized):,} {'file' if len(sized) == 1 else 'files'}"
        lines = [f"code: {count}, {size(self.total)}, largest: {largest(sized)}; digest {self.digest[:12]}"]
        lines += left_out_sentences(self.left_out)
        for one, other in same_but_for_case(file.path for file in self.files):
            lines.append(f"code: {one} and {other} are one file on some machines, such as a Mac")
        return lines


def bundle_of(folder: Path, added: CodeFile | None = None) -> Bundle:
    """Return a folder as a bundle.

    Args:
        folder: of the code.
        added: a further file, in the place of one with the same path.

    Raises:
        TorchYardError: it cannot travel, as one sentence that names the file and what to do.
    """
    found = listing(folder)
    files = contents(folder, found.paths)
    if added is not None:
        files = [*(file for file in files if file.path != added.path), added]
    return Bundle(digest(files), files, found.left_out, provenance(folder))


def bundle_of_tree(folder: Path) -> Bundle:
    """Return all files of a folder as a bundle: one that holds code and nothing else. Raises what `bundle_of` does."""
    paths = sorted((os.path.relpath(path, folder) for path in files_of(folder)), key=os.fsencode)
    files = contents(folder, paths)
    return Bundle(digest(files), files, [], Provenance())


def left_out_sentences(left_out: Sequence[str]) -> list[str]:
    """Return what is printed of files that do not travel; nothing, if all do."""
    if not left_out:
        return []
    more = len(left_out) - _SHOWN
    shown = ", ".join(map(_printable, left_out[:_SHOWN])) + (f" and {more:,} more" if more > 0 else "")
    return [f"code: left out: {shown}"]


def _printable(path: str) -> str:
    return path if path.isprintable() else repr(path)
