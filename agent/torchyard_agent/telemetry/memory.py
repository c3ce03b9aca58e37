"""Memory of this pod's control group: whether the kernel just killed a process for lack of it.

Such a kill looks like any `kill -9`. Under cgroup v2 the kubelet has the whole container killed and says
OOMKilled itself; under v1, with `singleProcessOOMKill` and outside of a cluster only the counter of the group knows.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple, Optional

# The agent looks at its workers several times a second; a kill that is older than this was another process's end.
_RECENT_SECONDS = 5.0
_NO_LIMIT = 2**60  # version 1 writes the largest multiple of a page


class _Files(NamedTuple):
    kills: str
    limit: str
    peak: str


_V1 = _Files("memory.oom_control", "memory.limit_in_bytes", "memory.max_usage_in_bytes")
_V2 = _Files("memory.events", "memory.max", "memory.peak")


class Memory:
    """The control group of this process; without one, no kill is ever reported.

    Args:
        mounts: where control groups are mounted.
        own: the file with the group of this process in each hierarchy.
    """

    def __init__(self, mounts: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> None:
        self._files = _V2
        self._folder = self._find(mounts, own)
        self._kills = self._count()
        self._seen = float("-inf")

    def follow(self) -> None:
        """Note whether the kernel killed a process since the last look."""
        kills = self._count()
        if kills != self._kills:
            self._kills, self._seen = kills, time.time()

    def killed_about(self, moment: float) -> bool:
        """Return whether the kernel killed a process at about this time (unix seconds)."""
        return abs(moment - self._seen) <= _RECENT_SECONDS

    def describe(self) -> str:
        """Return limit and peak of the group."""
        limit, peak = self._bytes(self._files.limit), self._bytes(self._files.peak)
        said = f"limit {_binary(limit)}" if limit is not None else "no limit was set, the node ran out of memory"
        return said + (f", peak {_binary(peak)}" if peak is not None else "")

    def _find(self, mounts: Path, own: Path) -> Optional[Path]:
        try:
            lines = [line.split(":", 2) for line in own.read_text(encoding="utf-8").splitlines()]
        except OSError:
            return None
        paths = {name: path.lstrip("/") for _, names, path in lines for name in names.split(",")}
        for name, mount, files in (("memory", mounts / "memory", _V1), ("", mounts, _V2)):
            # In a container the mount shows its own group, whatever its path is on the node.
            for folder in (mount / paths[name], mount) if name in paths else ():
                if (folder / files.kills).exists():
                    self._files = files
                    return folder
        return None

    def _count(self) -> int:
        """Return the number of processes killed so far; 0 also if it is not known."""
        fields = self._read(self._files.kills).split()
        after = fields[fields.index("oom_kill") + 1 :] if "oom_kill" in fields else ()
        return int(after[0]) if after and after[0].isdigit() else 0

    def _bytes(self, name: str) -> Optional[int]:
        text = self._read(name).strip()
        return int(text) if text.isdigit() and int(text) < _NO_LIMIT else None

    def _read(self, name: str) -> str:
        try:
            return (self._folder / name).read_text(encoding="ascii") if self._folder is not None else ""
        except (OSError, ValueError):
            return ""


def _binary(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
