"""The runs of this machine: find one by name, read it, tell whether a process controls it."""

import difflib
import os
import re
from pathlib import Path
from typing import NamedTuple

from torchyard.api.resource import TrainingJob
from torchyard.api.spec import DNS_LABEL_PATTERN
from torchyard.api.status import TERMINAL_STATES
from torchyard.cli.errors import RefusalError
from torchyard.cluster.local.folder import RunFolder, is_locked
from torchyard.cluster.local.run import read_run


class Run(NamedTuple):
    """A run as its files tell it; `controlled`: some process is in charge of it now."""

    folder: RunFolder
    job: TrainingJob
    controlled: bool

    @property
    def over(self) -> bool:
        """Whether nothing more will happen by itself."""
        return not self.controlled or self.job.status.state in TERMINAL_STATES


def home() -> Path:
    """`$TORCHYARD_HOME`, by default `~/.torchyard`; an absolute path that need not exist."""
    return Path(os.environ.get("TORCHYARD_HOME") or Path.home() / ".torchyard").expanduser().absolute()


def everything() -> list[RunFolder]:
    """Every run there is, by name."""
    runs = home() / "runs"
    try:
        folders = [entry for entry in runs.iterdir() if (entry / "job.yaml").exists()]
    except FileNotFoundError:
        return []
    return [RunFolder(folder) for folder in sorted(folders)]


def named(name: str) -> RunFolder:
    """The folder that a run of this name has, whether or not it exists.

    Raises:
        RefusalError: the name cannot be one of a run.
    """
    if not re.fullmatch(DNS_LABEL_PATTERN, name):
        raise RefusalError(f"{name!r} is no name of a run", "names are lower-case letters, digits and hyphens")
    return RunFolder(home() / "runs" / name)


def find(name: str) -> RunFolder:
    """The folder of a run that exists.

    Raises:
        RefusalError: there is no such run.
    """
    folder = named(name)
    if not folder.job_file.exists():
        near = difflib.get_close_matches(name, [known.name for known in everything()], n=1)
        fix = f"did you mean {near[0]!r}?" if near else "`torchyard ps` lists the runs"
        raise RefusalError(f"there is no run {name!r} in {home()}", fix)
    return folder


def load(folder: RunFolder) -> Run:
    """Read a run.

    Raises:
        RefusalError: its files are gone or damaged.
    """
    try:
        job = read_run(folder)
    except ValueError as error:
        raise RefusalError(str(error).rstrip("."), f"mend the file or `torchyard rm {folder.name}`") from error
    if job is None:
        raise RefusalError(f"the run {folder.name!r} was just deleted", "`torchyard ps` lists the runs")
    return Run(folder, job, is_locked(folder.lock_file))
