"""Packages of a lock file in a folder of their own, for tests and demonstrations; no environment has them."""

import os
import subprocess
import sys
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchyard"


class UnavailableError(Exception):
    """The packages cannot be installed here."""


def install(lock: Path, packages: Path, *options: str) -> None:
    """Install what is locked, without its dependencies, into a folder.

    Args:
        lock: with a digest for each package.
        packages: the folder.
        options: further ones of `uv pip install`.

    Raises:
        UnavailableError: they cannot be installed.
    """
    uv = Path(sys.executable).with_name("uv")
    command = [uv, "pip", "install", "--system-certs", "--quiet", "--no-deps", "--require-hashes", *options]
    done = subprocess.run(
        [*command, "--python", sys.executable, "--target", packages, "--requirement", lock],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"uv exits with {done.returncode}"]
        raise UnavailableError(f"the packages of {lock.name} cannot be installed: {lines[-1].strip()}")
