"""The runs of this machine: create, list and remove them, and find their controlling process and logs. Files only."""

import contextlib
import itertools
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from torchyard.api import values
from torchyard.api.files import remove_tree
from torchyard.api.names import CODE_ARRIVED, SOURCE_FOLDER
from torchyard.api.resource import TrainingJob
from torchyard.api.validation.changes import can_go_on_from
from torchyard.api.values import Time, rfc3339
from torchyard.local.process import kill_carrying
from torchyard.local.record import POD_MARK, PodRecord, read
from torchyard.local.run import (
    NoRunError,
    RunFolder,
    change_job,
    edit_job,
    editing,
    home_folder,
    is_controlled,
    read_run,
    take_lock,
    write_job,
)

REMOVE_SECONDS = 60.0
ASKING_SECONDS = 0.2
"""`is_controlled` holds the lock for an instant: a check must not keep a process from taking control."""

_RANK_LOG = re.compile(r"rank-([0-9]+)\.log")


KEPT_ASIDE = 10
"""Finished runs of one name that are kept in `$TORCHYARD_HOME/old/NAME` when others take their name."""

CONDEMNED = "."
"""Names of folders that are about to be deleted begin with it; no run's does."""


class Aside(NamedTuple):
    """Where a finished run was moved; `deleted`: the oldest runs of its name, beyond the number that is kept."""

    folder: RunFolder
    deleted: tuple[Path, ...]


class RunBusyError(ValueError):
    """Another process controls the run; `pid`: which, 0 if it has not said so yet."""

    def __init__(self, name: str, pid: int) -> None:
        who = f"process {pid}" if pid else "another process"
        super().__init__(
            f"Run `{name}` is controlled by {who}: watch it with `torchyard status {name}`, end it with "
            f"`torchyard stop {name}`."
        )
        self.pid = pid


class RunExistsError(ValueError):
    """An unfinished run of that name has another spec; `fields`: what differs."""

    def __init__(self, name: str, fields: list[str], resumable: bool) -> None:
        resumed = f" (and `--set checkpoint.resumeFrom={name}` to continue from its checkpoint)" if resumable else ""
        super().__init__(
            f"Run `{name}` is not finished and differs in {', '.join(f'`spec.{field}`' for field in fields)}: start "
            f"this one under another name with `--name NEW`{resumed}, or remove the old one with `torchyard rm {name}`."
        )
        self.fields = fields


class OtherFolderError(ValueError):
    """An unfinished run of that name was started in another folder, where the same command is another program."""

    def __init__(self, name: str, folder: str) -> None:
        super().__init__(
            f"Run `{name}` is not finished and belongs to {folder}: start this one under another name with `--name "
            f"NEW`, continue that one with `torchyard resume {name}`, or delete it with `torchyard rm {name}`."
        )


class LogFile(NamedTuple):
    """Output of one process of a run; `rank` is None for the agent and the keeper."""

    pod: str
    rank: int | None
    path: Path


def list_runs(home: Path | None = None) -> list[RunFolder]:
    """Return every run of this machine, by name."""
    runs = f"{home or home_folder()}/runs"
    try:
        names = sorted(os.listdir(runs))  # noqa: PTH208 - texts: paths would take most of the time of a list
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [
        RunFolder(Path(runs, name))
        for name in names
        if os.access(f"{runs}/{name}/job.yaml", os.F_OK) and not name.startswith(CONDEMNED)
    ]


def expire_runs(home: Path | None = None) -> list[str]:
    """Delete the runs whose `spec.ttlAfterFinished` has passed; return their names. Only commands do this."""
    for left in ((home or home_folder()) / "runs").glob(f"{CONDEMNED}*"):  # the process that deleted it died
        remove_tree(left)
    expired = []
    for folder in list_runs(home):
        with contextlib.suppress(ValueError):  # damaged
            job = read_run(folder)
            if job is not None and expire_run(folder, job):
                expired.append(folder.name)
    return expired


def expire_run(folder: RunFolder, job: TrainingJob) -> bool:
    """Delete the run of a job just read if its TTL has passed and no process controls it; return whether it is gone."""
    if not is_expired(job):
        return False
    try:
        with control(folder):
            discard_run(folder, job.metadata.uid)
    except ValueError:  # in use, or gone by now
        return not folder.job_file.exists()
    return True


def is_expired(job: TrainingJob) -> bool:
    """Return whether `spec.ttlAfterFinished` of the job has passed."""
    ttl, completed = job.spec.ttl_after_finished, job.status.completion_time
    return ttl is not None and completed is not None and time.time() >= completed + ttl


def discard_run(folder: RunFolder, uid: str) -> None:
    """Remove the run of this uid with all that it holds, and nothing if another one has its name by now.

    The caller must control the run. The name is free at once; the files may take a while.
    """
    with contextlib.suppress(NoRunError), editing(folder):
        with contextlib.suppress(ValueError):  # a damaged file does not belong to another run
            job = read_run(folder)
            if job is not None and job.metadata.uid != uid:
                return
        _end_pods(folder)
        # Beside it, not in `old`: a full disk may have no room for another folder, and deleting makes space.
        condemned = folder.path.rename(folder.path.with_name(f"{CONDEMNED}{folder.name}.{uid}"))
        remove_tree(condemned)


def create_run(
    folder: RunFolder,
    job: TrainingJob,
    source_folder: Path,
    on_aside: Callable[[TrainingJob, Aside], None] = lambda _before, _aside: None,
) -> TrainingJob:
    """Create the run of a job file, or continue the one that exists.

    An unfinished run with the same spec continues from its newest checkpoint. A finished one starts over, whatever its
    spec: it moves to `$TORCHYARD_HOME/old/<name>/<time of its end>`, where the newest `KEPT_ASIDE` stay. Of several
    processes that make the same run at the same time, one makes it and the others find it.

    Args:
        folder: of the run; its name becomes the job's.
        job: a valid job.
        source_folder: where the job file is.
        on_aside: called with a finished run that was moved, and where it is now.

    Raises:
        RunExistsError: the run is unfinished and has another spec.
        OtherFolderError: the run is unfinished and its program is in another folder.
        ValueError: the path of `source_folder` is not UTF-8.
        RunBusyError: another process controls the run, or is not done with the finished one.
    """
    while True:
        for path in (folder.home, folder.path.parent, folder.path):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(NoRunError), editing(folder):  # another process or this one moved it away: try again
            before = read_run(folder)
            if before is None:
                fresh = _fresh(folder, job, source_folder)
                write_job(folder, fresh)
                return fresh
            if not before.status.state.terminal and before.metadata.deletion_timestamp is None:
                return _go_on(folder, before, job, source_folder)
            with control(folder):
                _end_pods(folder)
                on_aside(before, put_aside(folder, before))


def suspend_run(folder: RunFolder, suspend: bool) -> TrainingJob:
    """Set `spec.suspend`, as `torchyard stop` and `resume` do; the controlling process follows.

    Raises:
        ValueError: there is no such run.
    """
    return edit_job(
        folder, lambda job: msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, suspend=suspend))
    )


def scale_run(folder: RunFolder, nodes: int) -> TrainingJob:
    """Set `spec.nodes`; the controlling process follows.

    Raises:
        ValueError: there is no such run.
    """
    return edit_job(
        folder, lambda job: msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, nodes=nodes))
    )


def remove_run(folder: RunFolder) -> None:
    """End a run now and remove all of it; nothing needs to be written where no process controls it. Blocks.

    Raises:
        ValueError: there is no such run, or its controlling process does not release it within a minute.
    """
    doomed = read_run(folder)
    if doomed is None:
        raise NoRunError(folder)
    asked, deadline = False, time.monotonic() + REMOVE_SECONDS
    while (job := read_run(folder)) is not None and job.metadata.uid == doomed.metadata.uid:
        try:
            with contextlib.suppress(NoRunError), control(folder):  # its controlling process may remove it first
                discard_run(folder, doomed.metadata.uid)
        except RunBusyError:
            if time.monotonic() > deadline:
                raise
            if not asked:
                asked = True
                with contextlib.suppress(NoRunError):
                    edit_job(folder, lambda job: _deleted(job) if job.metadata.uid == doomed.metadata.uid else job)
            time.sleep(ASKING_SECONDS)


@contextlib.contextmanager
def control(folder: RunFolder) -> Iterator[None]:
    """Hold the lock for controlling the run.

    Raises:
        RunBusyError: another one does.
        ValueError: there is no such run.
    """
    patience = time.monotonic() + ASKING_SECONDS
    try:
        while (lock := take_lock(folder.lock_file)) is None and time.monotonic() < patience:
            time.sleep(0.01)
    except FileNotFoundError:
        raise NoRunError(folder) from None
    if lock is None:
        raise RunBusyError(folder.name, is_controlled(folder) or 0)
    try:
        with contextlib.suppress(OSError):  # on a full disk the pid is missing
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(lock)


def log_files(folder: RunFolder) -> list[LogFile]:
    """Return the logs of a run: those of every pod it has had, oldest pod first, agent before ranks."""
    found = []
    for pod in sorted(folder.pods.glob("*/logs"), key=lambda path: path.stat().st_mtime_ns):
        for path in sorted(pod.glob("*.log")):
            match = _RANK_LOG.fullmatch(path.name)
            if match or path.name == "agent.log":
                found.append(LogFile(pod.parent.name, int(match[1]) if match else None, path))
    return sorted(found, key=lambda log: -1 if log.rank is None else log.rank)


def _fresh(folder: RunFolder, job: TrainingJob, source_folder: Path) -> TrainingJob:
    metadata = msgspec.structs.replace(
        job.metadata,
        name=folder.name,
        uid=str(uuid.uuid4()),
        generation=1,
        creation_timestamp=Time.of(time.time()),
        deletion_timestamp=None,
        annotations={**job.metadata.annotations, SOURCE_FOLDER: recordable(source_folder)},
    )
    return TrainingJob(metadata=metadata, spec=job.spec)


def recordable(folder: Path) -> str:
    """Return the absolute path of a folder as the text that an object can hold.

    Raises:
        ValueError: it is not UTF-8.
    """
    path = str(folder.absolute())
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{path!r} is not UTF-8: rename the folder, or start the program in another one.") from None
    return path


def _go_on(folder: RunFolder, before: TrainingJob, job: TrainingJob, source_folder: Path) -> TrainingJob:
    if (
        (home := before.metadata.annotations.get(SOURCE_FOLDER, str(source_folder.absolute())))
        != str(source_folder.absolute())
        and job.spec.command
        and not Path(job.spec.working_dir or "").is_absolute()
    ):
        raise OtherFolderError(folder.name, str(home))

    def comparable(spec: object) -> dict[str, object]:
        fields: dict[str, object] = msgspec.to_builtins(spec, enc_hook=values.encode)
        fields.pop("suspend", None)
        fields.pop("code", None)  # a run goes on with code that was edited
        return fields

    old, new = comparable(before.spec), comparable(job.spec)
    differing = sorted(field for field in old.keys() | new.keys() if old.get(field) != new.get(field))
    if differing:
        raise RunExistsError(folder.name, differing, can_go_on_from(before, job))
    with control(folder):  # or it would cancel the stop that its controller is busy with
        return change_job(folder, lambda current: _with_spec_of(current, job))


def _with_spec_of(current: TrainingJob, job: TrainingJob) -> TrainingJob:
    arrived = job.metadata.annotations.get(CODE_ARRIVED)
    noted = {CODE_ARRIVED: arrived} if arrived is not None else {}
    metadata = msgspec.structs.replace(current.metadata, annotations={**current.metadata.annotations, **noted})
    return msgspec.structs.replace(current, metadata=metadata, spec=job.spec)


def _deleted(job: TrainingJob) -> TrainingJob:
    metadata = msgspec.structs.replace(job.metadata, deletion_timestamp=Time.of(time.time()))
    return msgspec.structs.replace(job, metadata=metadata)


def _end_pods(folder: RunFolder) -> None:
    """Kill what is left of a finished run: its controller died between the end of the job and the end of its pods."""
    for path in folder.pods.glob("*/pod.json"):
        pod = read(path, PodRecord)
        if pod is not None:
            kill_carrying(POD_MARK, pod.uid)


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
    # The run that was just moved is never deleted, whatever its time.
    others = sorted(each for each in shelf.iterdir() if each != path)
    deleted = tuple(others[: max(0, len(others) + 1 - KEPT_ASIDE)])
    for each in deleted:
        remove_tree(each)
    return Aside(RunFolder(path), deleted)


def _free(shelf: Path, ended: float) -> Path:
    """Return a path that does not exist and whose name sorts by time: `2026-11-25T12-34-56Z`."""
    stamp = rfc3339(ended).replace(":", "-")
    names = itertools.chain([stamp], (f"{stamp}.{number}" for number in itertools.count(2)))
    return next(path for name in names if not (path := shelf / name).exists())
