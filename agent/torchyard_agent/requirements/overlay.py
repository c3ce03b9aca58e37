"""The folder of installed packages: whole or absent, shared by the pods that have the same claim or machine.

ROOT/KEY            the packages, on the path of programs
ROOT/KEY.json       number and bytes of their files
ROOT/KEY.lock       held by the process that installs them
ROOT/KEY.partial    what is being installed
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Dict, Iterator, List, Optional

from torchyard_agent.inputs.cache import Entry, expire


class Overlay:
    """One folder of packages."""

    def __init__(self, root: Path, key: str) -> None:
        entry = Entry(root, key)
        self.root, self.folder, self.partial, self.locked = root, entry.folder, entry.partial, entry.locked
        self._manifest = root / f"{key}.json"

    def is_whole(self) -> bool:
        """Return whether everything is there as it was installed; if so, note that it is in use."""
        try:
            known = json.loads(self._manifest.read_text(encoding="utf-8"))
            whole = bool(known == _measured(self.folder))
            if whole:
                os.utime(self._manifest)
        except (OSError, ValueError):
            return False
        return whole

    def begin(self) -> Path:
        """Return the empty folder to install into."""
        shutil.rmtree(self.partial, ignore_errors=True)
        self.partial.mkdir(parents=True)
        return self.partial

    def commit(self) -> None:
        """Make what was installed appear at once and complete."""
        shutil.rmtree(self.folder, ignore_errors=True)  # one that was damaged
        measured = _measured(self.partial)
        for path in _files(self.partial):
            path.chmod(path.stat().st_mode & 0o555)
        temporary = self._manifest.with_suffix(".tmp")
        temporary.write_text(json.dumps(measured), encoding="utf-8")
        temporary.replace(self._manifest)
        self.partial.rename(self.folder)

    def expire(self, now: Optional[float] = None) -> List[str]:
        """Delete packages of the same root that no round has used for a month; return their keys."""
        return expire(self.root, self.folder.name, now)


def _measured(folder: Path) -> Dict[str, int]:
    """Return number and bytes of the files but for bytecode, which interpreters write when they like."""
    sizes = [path.stat().st_size for path in _files(folder)]
    return {"files": len(sizes), "bytes": sum(sizes)}


def _files(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            yield Path(root, name)
