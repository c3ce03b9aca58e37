"""What is built once and kept: `~/.cache/torchyard`, by digest of what went in."""

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from shell import say

HERE = Path(__file__).resolve().parent
ROOT = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "torchyard"
KIND = ROOT / "kind"


def digest(*inputs: Path | str) -> str:
    """Twelve hex digits that stand for texts, files and whole folders (their relative names and contents)."""
    state = hashlib.sha256()
    for item in inputs:
        if isinstance(item, str):
            parts = [("", item.encode())]
        elif item.is_dir():
            files = sorted(path for path in item.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
            parts = [(str(path.relative_to(item)), path.read_bytes()) for path in files]
        else:
            parts = [(item.name, item.read_bytes())]
        for name, content in parts:
            state.update(f"{name}\0{len(content)}\0".encode())
            state.update(content)
    return state.hexdigest()[:12]


def built(folder: Path, build: Callable[[Path], None]) -> Path:
    """Return `folder`, filled by `build` if it is not there yet.

    It is built beside its place and moved there when finished, so that a half-finished build never counts.
    """
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        unfinished.chmod(0o755)
        build(unfinished)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


@contextmanager
def lock() -> Iterator[None]:
    """One builder at a time; a second one waits and then finds everything in the cache."""
    KIND.mkdir(parents=True, exist_ok=True)
    with (KIND / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another run that holds {KIND / 'lock'}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
