"""The owner of the checkpoints in the folder of this job on a claim, which outlives jobs and may serve the next one.

A job that is deleted and created again under its name is another job: with the files of the former one in its folder,
it would train nothing and report the former job's result as its own. The folder names the uid of its job; that of
another job is moved aside, and nothing is deleted. The agent of node rank 0 does this before it reports that it is
ready, so that no worker of any pod has looked into the folder.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Optional

OWNER_FILE = ".torchyard-job.json"
MAX_BYTES = 4096
MAX_FORMER = 10_000


def take(folder: Path, uid: str, *, go_on: bool) -> Optional[str]:
    """Claim the folder for the job `uid`; return a notice for its user.

    Args:
        folder: of the job's checkpoints, on its claim.
        uid: of the job.
        go_on: whether the job continues from the files of a former job of its name.

    Raises:
        OSError: the folder of another job cannot be moved aside.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = any(not path.name.startswith(OWNER_FILE) for path in folder.iterdir())
    owner = _owner(folder)
    if owner == uid:
        return None
    said = None
    if found and owner is not None and not go_on:
        old = _move(folder)
        folder.mkdir()
        said = (
            f"a former job of this name left files: they were moved to {old}, and this job starts over; "
            f"a built-in trainer continues from them with checkpoint.resumeFrom: {old.name}"
        )
    elif found:
        said = f"this job continues from the files in {folder}, which a former job of this name left"
    _write(folder, uid)
    return said


def _owner(folder: Path) -> Optional[str]:
    """Return the uid of the job that owns the files; None: no agent has recorded one."""
    try:
        with (folder / OWNER_FILE).open("rb") as stream:
            return str(json.loads(stream.read(MAX_BYTES))["uid"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return ""  # half written, or edited: not ours


def _move(folder: Path) -> Path:
    for number in range(1, MAX_FORMER):
        old = folder.with_name(f"{folder.name}-old-{number}")
        if not old.exists():
            folder.rename(old)
            return old
    raise OSError(f"{folder} cannot be moved aside: there are {MAX_FORMER} folders of former jobs; delete some")


def _write(folder: Path, uid: str) -> None:
    draft = folder / f"{OWNER_FILE}.{uid[:64]}"
    with draft.open("w", encoding="utf-8") as stream:
        json.dump({"uid": uid}, stream)
        stream.flush()
        os.fsync(stream.fileno())
    draft.replace(folder / OWNER_FILE)
