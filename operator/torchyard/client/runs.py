"""The runs of this machine as the command line speaks of them: by name, with an answer to every wrong one."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct, field

from torchyard.api.forms import DNS_LABEL_PATTERN
from torchyard.api.resource import TrainingJob
from torchyard.client.errors import NotFoundError, TorchYardError
from torchyard.cluster.local.folder import RunFolder
from torchyard.cluster.local.keeper import stat_fields
from torchyard.cluster.local.record import Running, read
from torchyard.cluster.local.run import read_run
from torchyard.cluster.local.runs import is_controlled, list_runs, run_folder


class Run(NamedTuple):
    """A run as its files describe it."""

    folder: RunFolder
    job: TrainingJob
    controlled: bool
    """Whether a process controls it."""
    detached: bool = False
    """Whether its pods live on without one: their `torchyard run` was killed."""

    @property
    def over(self) -> bool:
        """Whether nothing more will happen by itself."""
        return not (self.controlled or self.detached) or self.job.status.state.terminal

    def refusal(self, name: str) -> TorchYardError:
        """Return that it does not run, and how it could; nothing goes on with one that has ended."""
        state, what = self.job.status.state, f"the run {name!r} does not run"
        if state.terminal:
            return TorchYardError(what, f"it has ended ({state}); see `torchyard status {name}`")
        return TorchYardError(what, f"`torchyard resume {name}` goes on with it")


def named(name: str) -> RunFolder:
    """The folder that a run of this name has, whether or not it exists.

    Raises:
        TorchYardError: the name cannot be one of a run.
    """
    if not re.fullmatch(DNS_LABEL_PATTERN, name):
        raise TorchYardError(f"{name!r} is no name of a run", "names are lower-case letters, digits and hyphens")
    return run_folder(name)


def find(name: str) -> RunFolder:
    """The folder of a run that exists.

    Raises:
        NotFoundError: there is no such run.
    """
    folder = named(name)
    if not folder.job_file.exists():
        import difflib

        near = difflib.get_close_matches(name, [known.name for known in list_runs()], n=1)
        fix = f"did you mean {near[0]!r}?" if near else "`torchyard ps` lists the runs"
        raise NotFoundError(f"there is no run {name!r} in {folder.home}", fix)
    return folder


def load(folder: RunFolder) -> Run:
    """Read a run.

    Raises:
        TorchYardError: its files are gone or damaged.
    """
    controlled = is_controlled(folder) is not None  # before the status: what was written last is then read
    try:
        job = read_run(folder)
    except ValueError as error:
        raise TorchYardError(str(error).rstrip("."), f"correct the file or delete the folder {folder.path}") from error
    if job is None:
        raise NotFoundError(f"the run {folder.name!r} was deleted", "`torchyard ps` lists the runs")
    ended = controlled or job.status.state.terminal
    return Run(folder, job, controlled, detached=not ended and bool(living_processes(folder.pods)))


class PodProcesses(NamedTuple):
    """The processes of one pod."""

    pod: str
    agent: int
    workers: Mapping[int, int]  # pid by rank


class _Workers(Struct, frozen=True):
    """`workers.json`, written by the launcher of a round."""

    pids: dict[int, int] = field(default_factory=dict)


def living_processes(pods: Path) -> list[PodProcesses]:
    """Return the pods whose agents live, with the workers of each."""
    found = []
    for file in sorted(pods.glob("*/process.json")):
        running = read(file, Running)
        if running is not None and running.agent.alive():
            workers = read(file.parent / "run" / "workers.json", _Workers) or _Workers()
            alive = {rank: pid for rank, pid in sorted(workers.pids.items()) if _runs(pid)}
            found.append(PodProcesses(file.parent.name, running.agent.pid, alive))
    return found


def _runs(pid: int) -> bool:
    fields = stat_fields(pid)
    return bool(fields) and fields[0] != "Z"
