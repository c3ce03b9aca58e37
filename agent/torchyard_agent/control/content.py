"""A digest of what configures the workers of this pod besides its spec: config maps, secrets, the script.

The members of a gang are created at different times, and a config map can be edited in between. Each agent reports its
digest, and no round opens for members whose digests differ. Contents never leave the pod.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Iterator, Mapping, Sequence, Tuple

MAX_FILES, MAX_FILE_BYTES = 4096, 4 << 20
LOOK_SECONDS = 10.0  # a kubelet brings an edit into a mounted volume within a minute or two


class Content:
    """Computes the digest and keeps it up to date.

    Args:
        seed: makes digests of different jobs different, whatever they read.
        folders: mounted config maps and secrets, which may change while the pod runs.
        variables: folders of the config maps and secrets that variables come from; a file for each variable. Variables
            are set once, when the container starts.
        env: the environment of this process.
    """

    def __init__(
        self, seed: str, folders: Sequence[Path], variables: Sequence[Path], env: Mapping[str, str] = os.environ
    ) -> None:
        self._folders = folders
        fixed = hashlib.sha256(seed.encode())
        for name in sorted({path.name for folder in variables for path, _ in _files(folder)}):
            fixed.update(f"\0{name}\0{env.get(name, '')}".encode("utf-8", "surrogateescape"))
        self._fixed = fixed
        self._watched = bool(folders) or bool(variables)
        self._digest, self._due = "", 0.0

    def latest(self, *, idle: bool) -> str:
        """Return the digest, empty if nothing is watched; files are read again only while no round runs."""
        now = time.monotonic()
        if self._watched and (not self._digest or (idle and now >= self._due)):
            self._digest, self._due = self._read(), now + LOOK_SECONDS
        return self._digest

    def _read(self) -> str:
        found = self._fixed.copy()
        for folder in self._folders:
            for path, name in _files(folder):
                found.update(f"\0{folder}\0{name}\0".encode("utf-8", "surrogateescape"))
                try:
                    with path.open("rb") as stream:
                        found.update(hashlib.sha256(stream.read(MAX_FILE_BYTES)).digest())
                except OSError as error:
                    found.update(f"errno {error.errno}".encode())
        return found.hexdigest()[:32]


def _files(folder: Path) -> Iterator[Tuple[Path, str]]:
    """Yield files and their names below the folder, in order, without those that begin with `..`, a kubelet's own."""
    found = []
    for index, (root, folders, files) in enumerate(os.walk(folder, followlinks=True)):
        folders[:] = sorted(name for name in folders if not name.startswith(".."))
        found += [Path(root) / name for name in sorted(files) if not name.startswith("..")]
        if max(index, len(found)) > MAX_FILES:
            break
    for path in found[:MAX_FILES]:
        yield path, str(path.relative_to(folder))
