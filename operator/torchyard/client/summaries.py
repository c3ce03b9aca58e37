"""What a list shows of each job: one small record, which for the runs of this machine is read from one cache."""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from torchyard.api.files import read_regular
from torchyard.api.names import SWEEP
from torchyard.api.resource import TrainingJob, columns
from torchyard.api.status import GangStatus, State
from torchyard.client.errors import TorchYardError
from torchyard.local.run import RunFolder, home_folder, is_controlled, write_atomic
from torchyard.local.runs import expire_run, list_runs
from torchyard.version import __version__

CACHE = "summaries.json"
MAX_CACHE_BYTES = 256 * 2**20
SMALL = 64
"""So many runs are read as fast as the cache."""
SHARE = 16
"""The cache is written again when one of so many runs has changed."""


class Summary(Struct, frozen=True, kw_only=True):
    """A job as a list shows it; texts are empty where nothing is known.

    Attributes:
        name: of the job.
        namespace: of a job on a cluster.
        uid: of the job.
        state: of the job.
        reason: code of the reason.
        progress: share done.
        step: newest step, of how many.
        loss: newest loss.
        rate: optimizer steps a second.
        goodput: share of wall time that made steps which survived.
        eta: time left.
        restarts: number of restarts.
        nodes: ready and desired pods.
        round: newest round.
        saved: step of the newest checkpoint.
        created: unix seconds.
        started: unix seconds.
        completed: unix seconds.
        expires: unix seconds after which the run is deleted.
        controlled: whether something acts on the job.
        detached: whether its pods live on without a process that controls them.
        queued: the queue of a job that waits in one.
        sweep: of which it is a trial.
    """

    name: str
    namespace: str = ""
    uid: str = ""
    state: State = State.NEW
    reason: str = ""
    progress: str = ""
    step: str = ""
    loss: str = ""
    rate: str = ""
    goodput: str = ""
    eta: str = ""
    restarts: int = 0
    nodes: tuple[int, int] = (0, 0)
    round: int = 0
    saved: int | None = None
    created: float | None = None
    started: float | None = None
    completed: float | None = None
    expires: float | None = None
    controlled: bool = True
    detached: bool = False
    queued: GangStatus | None = None
    sweep: str = ""

    @property
    def word(self) -> str:
        """The state as people read it; a status without a process that writes it is out of date."""
        if self.interrupted:
            return "Detached" if self.detached else "Interrupted"
        return self.state.value or State.PENDING.value

    @property
    def interrupted(self) -> bool:
        """Whether the run should be going on but its controlling process is gone."""
        return not self.controlled and not self.state.at_rest

    def age(self, now: float) -> float | None:
        """Return seconds from the job's start (or creation) to its end or `now`."""
        start = self.started or self.created
        return None if start is None else max(0.0, (self.completed or now) - start)


def summary_of(job: TrainingJob, *, controlled: bool = True, detached: bool = False) -> Summary:
    """Return the summary of a job (pure)."""
    metadata, status = job.metadata, job.status
    shown, ttl = columns(status), job.spec.ttl_after_finished
    ends = None if ttl is None or status.completion_time is None else status.completion_time + ttl
    return Summary(
        name=metadata.name, namespace=metadata.namespace or "", uid=metadata.uid,
        state=status.state, reason=status.reason,
        progress=shown.progress, step=shown.step, loss=shown.loss, rate=shown.rate, goodput=shown.goodput,
        eta=shown.eta, restarts=status.restarts.total, nodes=(status.nodes.ready, status.nodes.desired),
        round=status.round, saved=status.checkpoint.step if status.checkpoint is not None else None,
        created=seconds(metadata.creation_timestamp), started=seconds(status.start_time),
        completed=seconds(status.completion_time), expires=seconds(ends), controlled=controlled, detached=detached,
        queued=status.gang if status.gang is not None and status.gang.position is not None else None,
        sweep=metadata.labels.get(SWEEP, ""),
    )  # fmt: skip


def seconds(time_: float | None) -> float | None:
    """Return a time as a plain number, which JSON has as one."""
    return None if time_ is None else float(time_)


class Entry(Struct, frozen=True):
    """The summary of a run, and the versions of the two files that it was made of: times in ns, sizes and inodes."""

    files: tuple[int, ...]
    summary: Summary


class Cache(Struct, frozen=True):
    """`summaries.json` in $TORCHYARD_HOME."""

    version: str
    entries: dict[str, Entry]


def local_summaries(
    read: Callable[[RunFolder], TrainingJob], lives: Callable[[RunFolder], bool]
) -> tuple[list[Summary], dict[str, str]]:
    """Return the runs of this machine, newest first, and what is wrong with damaged ones; delete expired runs.

    Args:
        read: reads the job of a run; raises `TorchYardError` if its files are damaged.
        lives: returns whether pods of a run live.
    """
    folders, path = list_runs(), home_folder() / CACHE
    cached = _read(path) if len(folders) > SMALL else {}
    entries: dict[str, Entry] = {}
    damaged: dict[str, str] = {}
    for folder in folders:
        try:
            entry = _entry(folder, cached.get(folder.name), read)
        except TorchYardError as error:
            damaged[folder.name] = str(error)
        else:
            if entry is not None:
                entries[folder.name] = entry
    changed = sum(entry is not cached.get(name) for name, entry in entries.items())
    if len(folders) > SMALL and changed * SHARE > len(folders):
        with contextlib.suppress(OSError):  # the disk is full, or the folder is of another user
            write_atomic(path, msgspec.json.encode(Cache(__version__, entries)))
    found = [_live(folder, entries[folder.name].summary, lives) for folder in folders if folder.name in entries]
    found.sort(key=lambda summary: summary.created or 0.0, reverse=True)
    return found, damaged


def _entry(folder: RunFolder, cached: Entry | None, read: Callable[[RunFolder], TrainingJob]) -> Entry | None:
    """Return the entry of a run; None: it was deleted.

    Raises:
        TorchYardError: its files are damaged.
    """
    files = _files(folder)
    if cached is not None and cached.files == files and not _is_over(cached.summary):
        return cached
    job = read(folder)
    if expire_run(folder, job):
        return None
    return Entry(files, summary_of(job, controlled=False))


def _is_over(summary: Summary) -> bool:
    return summary.expires is not None and time.time() >= summary.expires


def _live(folder: RunFolder, summary: Summary, lives: Callable[[RunFolder], bool]) -> Summary:
    """Return the summary with what the files do not say: whether a process controls the run, or its pods live on."""
    if summary.state.at_rest:
        return summary
    if is_controlled(folder) is not None:
        return msgspec.structs.replace(summary, controlled=True)
    return msgspec.structs.replace(summary, detached=lives(folder))


def _files(folder: RunFolder) -> tuple[int, ...]:
    path = str(folder.path)  # texts: paths would take most of the time of a list
    return (*version_of(f"{path}/job.yaml"), *version_of(f"{path}/status.json"))


def version_of(path: str | Path) -> tuple[int, ...]:
    """Return numbers that change whenever a file does: time in ns, size and inode; -1 if it cannot be read."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return (-1,)
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read(path: Path) -> dict[str, Entry]:
    try:
        cache = msgspec.json.decode(read_regular(path, MAX_CACHE_BYTES), type=Cache)
    except (OSError, msgspec.DecodeError, RecursionError):
        return {}
    return cache.entries if cache.version == __version__ else {}
