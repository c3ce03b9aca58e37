"""Output and files of rounds that failed here, beside the checkpoints: they outlive the pod if those are on a claim.

`failures/round-00000003/` of the checkpoint folder has `rank-<R>.log`, the end of the output of each rank of a pod in
which a failure began, and `failure-<pod>.json`, what the agent reports of it. With `spec.debug.keepFailedPod` there is
also `failures/files-00000003-<pod>/`: the newest reports, stacks and dumps of the run folder. Everything is bounded,
and only the newest rounds are kept.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import time
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Pattern, Sequence, Tuple

from torchyard_agent.files import try_write_json
from torchyard_agent.telemetry.logs import RankLog

FOLDER = "failures"
KEPT_ROUNDS = 5
LOG_BYTES, MOST_RANKS = 256 * 1024, 8
FILES_BYTES, MOST_FILES, MOST_VISITED = 64 * 1024 * 1024, 200, 10_000
# By name: the run folder also has tokens, and the variables of the program.
EVIDENCE = ("report.*", "pace.*", "failure.*", "stacks.*", "crash.*", "notice.*", "workers.json", "*nccl_trace*")
_ROUND, _FILES = re.compile(r"round-(\d{8})"), re.compile(r"files-(\d{8})-.*")


def began_here(ended: Dict[str, Any], *, terminated: bool) -> bool:
    """Return whether the failure of a round began in this pod, or the pod itself is being taken away.

    Args:
        ended: `exit` of the protocol.
        terminated: whether the agent was asked to end, by a signal.
    """
    if not ended["code"] or ended["saved"]:
        return False
    cause = ended["failure"]
    return terminated if cause is None else not cause["secondary"]


def keep(folder: Path, pod: str, ended: Dict[str, Any], logs: Sequence[RankLog], sources: Sequence[Path]) -> None:
    """Write the output of a failed round, and files of `sources`; a folder that refuses them is left alone.

    Args:
        folder: of the checkpoints.
        pod: name of this pod.
        ended: `exit` of the protocol.
        logs: of the ranks of this pod.
        sources: folders whose newest files are copied; (): none.
    """
    to = folder / FOLDER / f"round-{ended['round']:08d}"
    cause = ended["failure"]
    first = cause["rank"] if cause is not None else -1
    with contextlib.suppress(OSError):
        to.mkdir(parents=True, exist_ok=True)
        for log in sorted(logs, key=lambda log: (log.rank != first, log.rank))[:MOST_RANKS]:
            with contextlib.suppress(OSError):
                _copy_end(log.path, to / log.path.name)
        try_write_json(to / f"failure-{pod}.json", ended)
        if sources:
            _copy_files(sources, folder / FOLDER / f"files-{ended['round']:08d}-{pod}")
    prune(folder)


def prune(folder: Path, keep_files_seconds: Optional[float] = None) -> None:
    """Delete all but the newest rounds, the copied files of all but the newest one, and those that are too old.

    Args:
        folder: of the checkpoints.
        keep_files_seconds: for how long copied files are kept; None: as long as their round is the newest.
    """
    rounds = sorted(_numbered(folder, _ROUND))
    for _, path in rounds[:-KEPT_ROUNDS]:
        shutil.rmtree(path, ignore_errors=True)
    newest = rounds[-1][0] if rounds else 0
    for number, path in list(_numbered(folder, _FILES)):
        with contextlib.suppress(OSError):
            age = time.time() - path.stat().st_mtime
            if number < newest or (keep_files_seconds is not None and age > keep_files_seconds):
                shutil.rmtree(path, ignore_errors=True)


def _numbered(folder: Path, pattern: Pattern[str]) -> Iterator[Tuple[int, Path]]:
    with contextlib.suppress(OSError):
        for path in (folder / FOLDER).iterdir():
            named = pattern.fullmatch(path.name)
            if named is not None and path.is_dir() and not path.is_symlink():
                yield int(named[1]), path


def _copy_end(source: Path, to: Path) -> None:
    with source.open("rb") as read:
        size = os.fstat(read.fileno()).st_size
        read.seek(max(0, size - LOG_BYTES))
        if size > LOG_BYTES:
            read.readline()  # the first line is not whole
        to.write_bytes(read.read(LOG_BYTES))


def _copy_files(sources: Sequence[Path], to: Path) -> None:
    """Copy the newest regular files of the sources, each source in a folder of its name, within the bounds."""
    candidates: List[Tuple[float, int, Path, Path]] = []
    for source in sources:
        candidates += [(*found, Path(source.name) / found[2].relative_to(source)) for found in _files(source)]
    left = FILES_BYTES
    for _, size, path, place in sorted(candidates, reverse=True)[:MOST_FILES]:
        if size > left:
            continue
        left -= size
        with contextlib.suppress(OSError):
            (to / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, to / place, follow_symlinks=False)


def _files(source: Path) -> Iterator[Tuple[float, int, Path]]:
    """Yield time, size and path of the evidence below a folder; links are not followed."""
    visited = 0
    for folder, _, names in os.walk(source):
        for name in names:
            visited += 1
            if visited > MOST_VISITED:
                return
            path = Path(folder, name)
            with contextlib.suppress(OSError):
                found = path.lstat()
                if stat.S_ISREG(found.st_mode) and any(fnmatch(name, pattern) for pattern in EVIDENCE):
                    yield found.st_mtime, found.st_size, path
