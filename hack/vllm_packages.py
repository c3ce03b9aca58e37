"""Packages of vLLM for CPUs in a folder of their own, which tests put before those of the environment.

No environment of the project has them: they are 0.9 GB, and pin older releases of what others use.
"""

import hashlib
import shutil
import tempfile
from pathlib import Path

from hack.locked_packages import CACHE, install

LOCK = Path(__file__).with_name("vllm.lock")
OURS = CACHE / "vllm"


def folder() -> Path:
    """Return the folder of the packages; install them at the first call after the lock has changed.

    Raises:
        UnavailableError: they cannot be installed.
    """
    found = OURS / hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]
    if not found.exists():
        OURS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=OURS) as room:
            packages = Path(room, "packages")
            install(LOCK, packages, "--only-binary=:all:")
            if not found.exists():  # another process may have been faster
                shutil.move(packages, found)
    return found
