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
from typing import Any, BinaryIO, Dict, Iterator, List, Optional, Pattern, Sequence, Tuple

from torchyard_agent.files import try_write_json
from torchyard_agent.telemetry.logs import RankLog

FOLDER = "failures"
KEPT_ROUNDS = 5
LOG_BYTES, MOST_RANKS = 256 * 1024, 8
FILES_BYTES, MOST_FILES, MOST_VISITED = 64 * 1024 * 1024, 200, 10_000
# By name: the run folder also has tokens, and the variables of the program.
EVIDENCE = ("report.*", "pace.*", "failure.*", "stacks.*", "crash.*", "notice.*", "workers.json", "*nccl_trace*")
_STAGED = ".failed-"
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


class Evidence:
    """What a failed round left here, as it was when the round ended, however late it is written.

    Later rounds append to the logs and delete the reports. Therefore logs are opened at once, with their size, and
    files get a second name (a hard link) in a folder of the run folder: neither copies a byte.

    Args:
        pod: name of this pod.
        ended: `exit` of the protocol.
        logs: of the ranks of this pod.
        run_dir: folder whose newest files are kept, too; None: no files.
    """

    def __init__(self, pod: str, ended: Dict[str, Any], logs: Sequence[RankLog], run_dir: Optional[Path]) -> None:
        self._pod, self._ended, self._staged = pod, ended, run_dir / f"{_STAGED}{ended['round']}" if run_dir else None
        self._logs: List[Tuple[str, BinaryIO, int]] = []
        self._files: List[Tuple[Path, Path]] = []  # where each is, and its place below the folder of its source
        cause = ended["failure"]
        first = cause["rank"] if cause is not None else -1
        for log in sorted(logs, key=lambda log: (log.rank != first, log.rank))[:MOST_RANKS]:
            with contextlib.suppress(OSError):
                opened = log.path.open("rb")
                self._logs.append((log.path.name, opened, os.fstat(opened.fileno()).st_size))
        if run_dir is not None and self._staged is not None:
            self._files = [_stage(path, self._staged / str(n), run_dir) for n, path in enumerate(_newest(run_dir))]

    def write(self, folder: Path) -> None:
        """Write it below the folder of the checkpoints; a folder that refuses it is left alone. Can be called once."""
        number = self._ended["round"]
        to = folder / FOLDER / f"round-{number:08d}"
        with contextlib.suppress(OSError):
            to.mkdir(parents=True, exist_ok=True)
            for name, log, size in self._logs:
                with contextlib.suppress(OSError):
                    _write_end(log, size, to / name)
            try_write_json(to / f"failure-{self._pod}.json", self._ended)
            for path, place in self._files:
                with contextlib.suppress(OSError):
                    _copy(path, folder / FOLDER / f"files-{number:08d}-{self._pod}" / place)
        self.close()
        prune(folder)

    def close(self) -> None:
        """Close the logs and remove the second names."""
        for _, log, _ in self._logs:
            log.close()
        if self._staged is not None:
            shutil.rmtree(self._staged, ignore_errors=True)


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


def _write_end(log: BinaryIO, size: int, to: Path) -> None:
    """Write the last whole lines before `size`; a reader never meets a part of them."""
    log.seek(max(0, size - LOG_BYTES))
    data = log.read(min(size, LOG_BYTES))
    if size > LOG_BYTES:
        data = data.partition(b"\n")[2]  # the first line is not whole
    part = to.with_name(f".{to.name}.part")
    part.write_bytes(data)
    part.replace(to)


def _copy(path: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, to, follow_symlinks=False)


def _newest(source: Path) -> Iterator[Path]:
    """Yield the newest files of evidence below a folder, within the bounds."""
    left = FILES_BYTES
    for _, size, path in sorted(_files(source), reverse=True)[:MOST_FILES]:
        if size <= left:
            left -= size
            yield path


def _stage(path: Path, link: Path, source: Path) -> Tuple[Path, Path]:
    """Return where the content of a file stays, and its place among the files that are kept."""
    place = Path(source.name) / path.relative_to(source)
    try:
        link.parent.mkdir(exist_ok=True)
        os.link(str(path), str(link), follow_symlinks=False)
    except OSError:  # a file system without links: the next round may overwrite the file before it is copied
        return path, place
    return link, place


def _files(source: Path) -> Iterator[Tuple[float, int, Path]]:
    """Yield time, size and path of the evidence below a folder; links are not followed."""
    visited = 0
    for folder, folders, names in os.walk(source):
        folders[:] = [name for name in folders if not name.startswith(_STAGED)]
        for name in names:
            visited += 1
            if visited > MOST_VISITED:
                return
            path = Path(folder, name)
            with contextlib.suppress(OSError):
                found = path.lstat()
                if stat.S_ISREG(found.st_mode) and any(fnmatch(name, pattern) for pattern in EVIDENCE):
                    yield found.st_mtime, found.st_size, path
