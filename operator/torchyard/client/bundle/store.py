"""The code of the runs of this machine: `$TORCHYARD_HOME/code`, in which runs find it by its digest."""

import contextlib
import os
import tempfile
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from torchyard.api.files import remove_tree
from torchyard.local.environment import image_folder, images_folder
from torchyard.local.run import home_folder, read_run
from torchyard.local.runs import list_runs

UNUSED_SECONDS = 3600.0
"""How long code stays that no run names: another process may be about to create its run."""

IMAGE_SECONDS = 30 * 86400.0
"""The same for the code of an image."""


def keep(digest: str, parts: Sequence[bytes], home: Path | None = None) -> None:
    """Write the parts of an archive; agents unpack it, once for all runs of this code.

    Raises:
        OSError: they cannot be written.
    """
    folder = (home or home_folder()) / "code"
    target = folder / digest
    if target.is_dir():
        with contextlib.suppress(OSError):
            os.utime(target)
        return
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=".", dir=folder))
    try:
        for number, part in enumerate(parts):
            (fresh / f"part-{number:04}").write_bytes(part)
        with contextlib.suppress(FileExistsError, OSError):
            fresh.rename(target)
        if not target.is_dir():
            raise OSError(f"{target} cannot be created")
    finally:
        remove_tree(fresh)


def expire(home: Path | None = None) -> None:
    """Delete code that no run names any more; that of images, which is read again from far away, after a month."""
    home = home or home_folder()
    used: set[str] = set()
    images: set[str] = set()
    for run in list_runs(home):
        with contextlib.suppress(ValueError):  # damaged
            job = read_run(run)
            if job is not None and job.spec.code is not None:
                used |= {job.spec.code.digest} if job.spec.code.digest is not None else set()
                images |= {image_folder(home, job.spec.code.image).name} if job.spec.code.image else set()
    _delete_unused(home / "code", used, UNUSED_SECONDS)
    _delete_unused(images_folder(home), images, IMAGE_SECONDS)


def _delete_unused(folder: Path, used: Collection[str], seconds: float) -> None:
    before = time.time() - seconds
    for path in folder.iterdir() if folder.is_dir() else ():
        with contextlib.suppress(OSError):
            if path.name not in used and path.stat().st_mtime < before:
                remove_tree(path)
