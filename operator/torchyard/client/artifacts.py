"""The artifacts of a job: the entries of its checkpoint folder, each format of an export on its own."""

import os
import re
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from torchyard.api.files import read_regular
from torchyard.api.values import QUANTITY_PATTERN, amount
from torchyard.client.errors import FAILED, TorchYardError

MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 16 * 1024 * 1024
MAX_SIZE = "64Gi"
MAX_ENTRIES = 100_000

EXPORT = "export"
MOST_FILES = 100_000
"""Counted of one entry at most: a folder of a million samples must not keep a terminal waiting."""


class TooLargeError(TorchYardError):
    """The data exceed the limit; nothing is kept."""


class Allowance:
    """The remaining limit for the data of all pods together.

    Args:
        size: bytes.
        shown: the limit as the user wrote it.
    """

    def __init__(self, size: int, shown: str) -> None:
        self.bytes, self.entries, self.shown = size, MAX_ENTRIES, shown

    def take(self, count: int) -> None:
        """Count `size` received bytes.

        Raises:
            TooLargeError: the limit is exceeded.
        """
        self.bytes -= count
        if self.bytes < 0:
            raise TooLargeError(f"it is larger than {self.shown}", "give a larger --max-size", FAILED)

    def enter(self) -> None:
        """Count one entry of an archive.

        Raises:
            TooLargeError: there are too many entries.
        """
        self.entries -= 1
        if self.entries < 0:
            raise TooLargeError(f"it has more than {MAX_ENTRIES} files and folders", "fetch a part of it", FAILED)


class Artifact(NamedTuple):
    """A file or folder, by its path in the checkpoint folder."""

    path: str
    bytes: int
    files: int
    is_folder: bool


Fetch = Callable[[str, Path, Path, Allowance], Awaitable[None]]
"""Copies a file or folder of a job's checkpoint folder: name of the job, path there, path here, limits."""


def artifacts_of(root: Path) -> list[Artifact]:
    """Return the artifacts in a checkpoint folder by name, without hidden entries and links that lead out of it."""
    return [_measured(root, path) for path in sorted(_entries(root)) if _is_inside(path, root)]


def _is_inside(path: Path, root: Path) -> bool:
    # Not `Path.resolve`, which raises for a link to itself.
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))


def _entries(root: Path) -> Iterator[Path]:
    for entry in root.iterdir() if root.is_dir() else ():
        if entry.name.startswith("."):
            continue
        if entry.name == EXPORT and entry.is_dir():
            yield from (one for one in entry.iterdir() if not one.name.startswith("."))
        else:
            yield entry


def _measured(root: Path, path: Path) -> Artifact:
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
    return Artifact(path.relative_to(root).as_posix(), found, files, path.is_dir())


def remove(path: Path) -> None:
    """Delete a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


async def bring(
    fetch: Fetch, name: str, path: str, to: Path | None = None, *, replace: bool = False, max_size: str = MAX_SIZE
) -> Path:
    """Copy a file or folder from a job's checkpoint folder; the copy appears completely or not at all.

    Args:
        fetch: of the backend where the job is.
        name: of the job.
        path: in the checkpoint folder: `export/web`, `final`, `metrics.jsonl`.
        to: path of the copy; by default the same name in the current folder.
        replace: overwrite an existing file or folder.
        max_size: limit on the bytes that pods send, such as `500Mi`.

    Returns:
        Where it is.

    Raises:
        TorchYardError: the job has no such path, it is too large, or `to` exists already.
    """
    allowed = bytes_of(max_size)
    wanted = inside(path)
    target = to if to is not None else Path(wanted.name)
    if Path.cwd().is_relative_to(target.resolve()):  # what is there is removed, and this folder would go with it
        raise TorchYardError(
            f"-o {target} is the current folder", f"name a folder inside it: -o {target / wanted.name}"
        )
    if not replace and (target.is_file() or (target.is_dir() and any(target.iterdir()))):
        raise TorchYardError(f"{target} already exists", "give --replace (Python: replace=True), or another -o (to=)")
    if target.exists() and not target.is_file() and not target.is_dir():  # root could replace /dev/null by a file
        raise TorchYardError(f"{target} is neither a file nor a folder", "give another -o (to=)")
    folder = _scratch_folder(target)
    scratch = folder / target.name
    try:
        await fetch(name, wanted, scratch, Allowance(allowed, max_size))
        check(scratch)
        remove(target)
        scratch.rename(target)
    finally:
        remove(folder)
    return target


def _scratch_folder(target: Path) -> Path:
    """Create a private folder with a random name beside `target`, where no other user can have placed a link.

    Raises:
        TorchYardError: the folder of `target` cannot be created, or takes no files.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f".{target.name[:100]}.", dir=target.parent))
    except (FileExistsError, NotADirectoryError):
        reason = "a part of its path is a file"
    except FileNotFoundError:  # the folder is there: /proc and its like
        reason = f"{target.parent} takes no files"
    except OSError as error:
        reason = f"{target.parent}: {error.strerror}"
    raise TorchYardError(f"{target} cannot be written ({reason})", "give another -o (to=)", FAILED)


def inside(text: str) -> Path:
    """Check that a path stays in the checkpoint folder, and return it.

    Raises:
        TorchYardError: the path leaves the folder.
    """
    path = Path(text)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise TorchYardError(f"{text!r} is not a path in a checkpoint folder", "write it like export/web")
    return path


def copy(root: Path, wanted: Path, to: Path, name: str) -> None:
    """Copy from a run's folder.

    Raises:
        TorchYardError: the path does not exist.
    """
    source = root / wanted
    if not source.exists():
        raise TorchYardError(f"the run {name!r} has no {wanted}", there([one.path for one in artifacts_of(root)], name))
    if not _is_inside(source, root):
        raise TorchYardError(f"{wanted} of the run {name!r} is a link out of its folder", f"copy {source.resolve()}")
    if source.is_dir():
        shutil.copytree(source, to, symlinks=True)
    else:
        shutil.copyfile(source, to)


def there(found: list[str], name: str) -> str:
    """Return the fix: the names that exist."""
    return f"it has {', '.join(found)}" if found else f"it has written nothing yet: `torchyard status {name}`"


def check(fetched: Path) -> None:
    """Compare an export with its manifest.

    Raises:
        TorchYardError: a file is missing or differs from the manifest.
    """
    import json

    manifest = fetched / MANIFEST
    if not manifest.is_file():
        return
    try:
        files = json.loads(read_regular(manifest, MAX_MANIFEST_BYTES))["files"]
        expected = {name: facts["sha256"] for name, facts in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return  # the manifest of another program
    for name, digest in expected.items():
        path = fetched / inside(name)
        if not path.is_file() or digest_of(path) != digest:
            raise TorchYardError(f"{name} is not what its manifest says", "fetch it again, or export it again", FAILED)


def digest_of(path: Path) -> str:
    """SHA-256 of a file of any size."""
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def bytes_of(text: str) -> int:
    """Return the bytes of a quantity.

    Raises:
        TorchYardError: the text is not a size.
    """
    if re.search(QUANTITY_PATTERN, text) is None or text.endswith("m"):
        raise TorchYardError(f"--max-size {text}: not a size", "write it like 500Mi or 64Gi")
    return int(amount(text))
