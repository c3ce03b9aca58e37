"""The commit protocol of a checkpoint folder, as plain files. Independent of torch, ranks and training.

    <root>/step-00001200/{dcp/..., state.json, COMMIT}   COMMIT names every other file with size and SHA-256
    <root>/.step-00001200.round-7.JOB/                   the same while round 7 writes it; the last act renames it
    <root>/round.lock                                    the newest round that owns the folder: `ROUND JOB_UID`
    <root>/latest                                        advisory

A step folder without a valid COMMIT does not exist. COMMIT is the first thing deleted. No two gangs write in one
folder: what a gang that was cut off still writes never reaches a checkpoint of its successor.
"""

import errno
import hashlib
import json
import math
import os
import re
import shutil
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from torchyard_trainers.core.checkpoints.files import open_regular, read_bytes, read_record
from torchyard_trainers.core.exits import STORAGE_ERRNOS, SupersededError

COMMIT = "COMMIT"
LOCK = "round.lock"
STATE = "state.json"
SHARDS = "dcp"
_STEP = re.compile(r"step-(\d{8,})")
_UNFINISHED = re.compile(r"\.step-\d{8,}\.round-(\d+)\.([0-9a-f]{8})")
_SCRATCH = re.compile(r"\.[a-z][a-z.-]*\.\d+")  # of `write_atomically`


class Candidate(NamedTuple):
    """A step folder; `fault` says why it is invalid, "" if its COMMIT and the sizes of its files are correct."""

    step: int
    folder: Path
    fault: str
    committed: bool


def step_folder(root: Path, step: int) -> Path:
    """Name the folder of a step."""
    return root / f"step-{step:08d}"


def is_step(path: Path) -> bool:
    """Whether a path has the name of a step folder."""
    return _STEP.fullmatch(path.name) is not None


def unfinished_folder(root: Path, step: int, round_number: int, job: str) -> Path:
    """Name the folder in which one round writes a step."""
    return root / f".{step_folder(root, step).name}.round-{round_number}.{_mark(job)}"


def _mark(job: str) -> str:
    return hashlib.sha256(job.encode()).hexdigest()[:8]


def candidates(root: Path) -> list[Candidate]:
    """Return all step folders, newest first."""
    if not root.is_dir():
        return []
    named = ((match, entry) for entry in root.iterdir() if (match := _STEP.fullmatch(entry.name)))
    found = ((match, entry) for match, entry in named if entry.is_dir() and not entry.is_symlink())
    steps = sorted(((int(match[1]), entry) for match, entry in found), reverse=True)
    return [Candidate(step, folder, _fault(folder), (folder / COMMIT).exists()) for step, folder in steps]


def digest(path: Path) -> dict[str, Any]:
    """Return size and SHA-256 of a regular file.

    Raises:
        ValueError: it is a link, a pipe or a device.
    """
    with open_regular(path) as file:
        return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "bytes": os.fstat(file.fileno()).st_size}


def damaged(folder: Path, part: int, parts: int) -> list[str]:
    """Read every `parts`-th file that COMMIT names, from `part`; return those that differ from COMMIT."""
    files = read_commit(folder)["files"]
    mine = sorted(files)[part::parts]
    return [name for name in mine if not (folder / name).is_file() or digest(folder / name) != files[name]]


def commit(folder: Path, files: dict[str, Any], facts: dict[str, Any]) -> None:
    """Write the marker that the files of a folder are complete."""
    write_atomically(folder / COMMIT, json.dumps({"schema": 1, "files": files, **facts}, indent=1))


def publish(unfinished: Path, folder: Path) -> None:
    """Rename a committed folder to the name of its step.

    Raises:
        SupersededError: the name exists, so another round has written it.
    """
    try:
        unfinished.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise SupersededError(f"another round has written {folder}; this one stops") from error
    sync_folder(folder.parent)


def sweep(root: Path, round_number: int, job: str) -> None:
    """Remove the remains of killed saves of earlier rounds; keep folders that a newer round may be writing."""
    for candidate in candidates(root):
        if not candidate.committed:
            remove(candidate.folder)
    for entry in list(root.iterdir()):
        found = _UNFINISHED.fullmatch(entry.name)
        if found and (found[2] != _mark(job) or int(found[1]) <= round_number):
            remove(entry)
    # Written before this round took the folder, by a process that was killed before the rename.
    lock = root / LOCK
    begun = lock.stat().st_mtime if lock.exists() else 0.0
    for entry in root.glob(".*"):
        if _SCRATCH.fullmatch(entry.name) and entry.is_file() and entry.stat().st_mtime < begun:
            entry.unlink(missing_ok=True)


def read_commit(folder: Path) -> dict[str, Any]:
    """Read COMMIT, with a size limit, since a shared folder may hold anything.

    Raises:
        ValueError: it is not what `commit` writes, or names a file outside the folder.
        OSError: it cannot be read.
    """
    found = read_record(folder / COMMIT)
    files = found.get("files")
    if not isinstance(files, dict) or not all(isinstance(facts, dict) for facts in files.values()):
        raise ValueError(f"{folder / COMMIT} holds no list of files")
    for name in files:
        parts = PurePosixPath(name).parts
        if not parts or parts[0] == "/" or ".." in parts:
            raise ValueError(f"{name[:80]!r} is not the name of a file of this folder")
    return found


def read_score(folder: Path) -> float | None:
    """Return the score of a checkpoint, lower is better; None if it has none."""
    try:
        score = read_record(folder / STATE)["score"]
    except (ValueError, KeyError, FileNotFoundError):
        return None
    return float(score) if isinstance(score, int | float) and math.isfinite(score) else None


def remove(folder: Path) -> None:
    """Delete a step folder so that it is never partially valid."""
    (folder / COMMIT).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def disown(root: Path, newer_than: int) -> list[int]:
    """Remove COMMIT from all folders newer than the step from which a run continues; return their steps.

    They are unreadable, but retention checks only sizes and would keep them instead of new checkpoints.
    """
    passed_over = [found for found in candidates(root) if found.committed and found.step > newer_than]
    for candidate in passed_over:
        (candidate.folder / COMMIT).unlink()
    return [candidate.step for candidate in passed_over]


def retire(root: Path, keep: int, *, saved: int, best: int = 0) -> list[int]:
    """Delete all but the newest `keep` valid checkpoints and the `best` ones by score; return the deleted steps.

    The checkpoint just saved is always kept.
    """
    valid = [candidate for candidate in candidates(root) if not candidate.fault]
    scored = sorted((score, -found.step) for found in valid if (score := read_score(found.folder)) is not None)
    kept = {saved, *(found.step for found in valid[: max(keep, 1)]), *(-step for _, step in scored[:best])}
    retired = [candidate for candidate in valid if candidate.step not in kept]
    for candidate in retired:
        remove(candidate.folder)
    return [candidate.step for candidate in retired]


def claim_round(root: Path, round_number: int | None, job: str) -> int:
    """Take the folder for a round (None: the next one); return the round number.

    Raises:
        SupersededError: a newer round of the same job already holds it.
    """
    held, holder = read_lock(root)
    if round_number is None:
        round_number = held + 1
    if holder == job and held > round_number:
        raise SupersededError(f"round {held} owns {root}; this is round {round_number} and stops")
    write_atomically(root / LOCK, f"{round_number} {job}\n")
    return round_number


def check_round(root: Path, round_number: int, job: str) -> None:
    """Check that this round still owns the folder.

    Raises:
        SupersededError: it does not.
    """
    held, holder = read_lock(root)
    if held > round_number or (holder not in ("", job)):
        raise SupersededError(f"round {held} took over {root}; round {round_number} stops without writing")


def read_lock(root: Path) -> tuple[int, str]:
    """Return round and job that own the folder: (0, "") if none."""
    try:
        number, _, job = read_bytes(root / LOCK, 4096).decode()[:512].strip().partition(" ")
        return int(number), job
    except (FileNotFoundError, ValueError):
        return 0, ""


def write_atomically(path: Path, text: str) -> None:
    """Replace a file so that a crash at any time leaves the old or the new one, on disk."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with scratch.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that its names are durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fault(folder: Path) -> str:
    try:
        files = read_commit(folder)["files"]
    except FileNotFoundError:
        return "no COMMIT"
    except (ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno in STORAGE_ERRNOS:  # the volume's fault, that may pass
            raise
        return f"COMMIT is unreadable ({error})"
    for name, expected in files.items():
        path = folder / name
        if any(each.is_symlink() for each in (path, *path.parents[: len(PurePosixPath(name).parts) - 1])):
            return f"{name} is a symbolic link; a checkpoint holds regular files only"
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != expected.get("bytes"):
            return f"{name} has {path.stat().st_size} bytes instead of {expected.get('bytes')}"
    return ""
