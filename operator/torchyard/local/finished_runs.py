"""Finished runs whose name another run takes: kept beside the others, the newest few of each name."""

import itertools
import shutil
import time
from pathlib import Path
from typing import NamedTuple

from torchyard.api.resource import TrainingJob
from torchyard.api.values import rfc3339
from torchyard.local.folder import RunFolder

KEPT_ASIDE = 10
"""Finished runs of one name that are kept in `$TORCHYARD_HOME/old/NAME` when others take their name."""

CONDEMNED = "."
"""Names of folders that are about to be deleted begin with it; no run's does."""


class Aside(NamedTuple):
    """Where a finished run was moved; `deleted`: the oldest ones of its name, which are more than are kept."""

    folder: RunFolder
    deleted: tuple[Path, ...]


def put_aside(folder: RunFolder, job: TrainingJob) -> Aside:
    """Move a finished run to `$TORCHYARD_HOME/old/<name>/<time of its end>`, where the newest `KEPT_ASIDE` stay."""
    shelf = folder.home / "old" / folder.name
    if (shelf / "job.yaml").exists():  # written by a version that kept one run of a name, without a time
        former = shelf.rename(shelf.with_name(f"{CONDEMNED}{folder.name}"))
        shelf.mkdir(mode=0o700)
        former.rename(_free(shelf, former.stat().st_mtime))
    shelf.mkdir(mode=0o700, parents=True, exist_ok=True)
    completed = job.status.completion_time
    path = folder.path.rename(_free(shelf, completed if completed is not None else time.time()))
    # What was put aside just now is never deleted, whatever its time.
    others = sorted(each for each in shelf.iterdir() if each != path)
    deleted = tuple(others[: max(0, len(others) + 1 - KEPT_ASIDE)])
    for each in deleted:
        shutil.rmtree(each, ignore_errors=True)
    return Aside(RunFolder(path), deleted)


def _free(shelf: Path, ended: float) -> Path:
    """Return a path that does not exist and whose name sorts by time: `2026-11-25T12-34-56Z`."""
    stamp = rfc3339(ended).replace(":", "-")
    names = itertools.chain([stamp], (f"{stamp}.{number}" for number in itertools.count(2)))
    return next(path for name in names if not (path := shelf / name).exists())
