"""The folder of this machine for what is computed from files once and used again: results of checks, and copies."""

import os
import tempfile
from pathlib import Path

from torchyard_trainers.core.exits import DataError


def own_folder() -> Path:
    """Return a folder for temporary files that only this user can write.

    Raises:
        DataError: another user made it.
    """
    folder = Path(tempfile.gettempdir()) / f"torchyard-data-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.lstat().st_uid != os.getuid() or folder.is_symlink():
        raise DataError(f"{folder} belongs to another user; remove it, or set TMPDIR")
    return folder
