"""Sweeps of this machine: one folder each, beside the runs that are their trials. Files only, no process."""

import contextlib
import os
import re
import shutil
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec

from torchyard.api.files import read_regular
from torchyard.api.names import PROGRAM_FOLDER, SOURCE_FOLDER, SWEEP_UID
from torchyard.api.reasons import Reason
from torchyard.api.resource import TrainingJob
from torchyard.api.status import State, TrainingJobStatus
from torchyard.api.values import DNS_LABEL_PATTERN, Duration, Time
from torchyard.local.environment import with_programs
from torchyard.local.run import (
    RunFolder,
    decode_object,
    edit_job,
    encode_object,
    home_folder,
    is_locked,
    read_run,
    run_folder,
    take_lock,
    write_atomic,
    write_status_file,
)
from torchyard.local.runs import create_run, recordable, remove_run
from torchyard.sweeps.codec import read_sweep, sweep_document
from torchyard.sweeps.outcomes import Value
from torchyard.sweeps.resource import TrainingSweep, TrialRecord, Unit, trial_name
from torchyard.sweeps.spec import MAX_TRIALS, MAY_CHANGE
from torchyard.sweeps.trials import edited, trial_job, trial_of

MAX_BYTES = 4 * 1024 * 1024
MAX_LOCK_BYTES = 64
METRICS_INTERVAL = Duration("1s")
"""Trials here may last seconds; on a disk a status costs next to nothing."""


class SweepBusyError(ValueError):
    """Another process controls the sweep."""


class NoSweepError(ValueError):
    """There is no such sweep."""

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no sweep `{name}` in {sweeps_folder()}.")


def sweeps_folder() -> Path:
    """Folder of all sweeps."""
    return home_folder() / "sweeps"


def is_sweep(name: str) -> bool:
    """Return whether there is a sweep of a name, which is a valid one."""
    return (sweeps_folder() / name / "sweep.yaml").exists()


def sweep_names() -> list[str]:
    """Return the names of the sweeps of this machine."""
    return sorted(path.parent.name for path in sweeps_folder().glob("*/sweep.yaml"))


def load_sweep(name: str) -> TrainingSweep:
    """Read a sweep. Its name is that of its folder, which is a valid one, whatever the file says.

    Raises:
        NoSweepError: it does not exist.
        ValueError: its file was damaged.
    """
    if not re.fullmatch(DNS_LABEL_PATTERN, name):  # or it would be the path of another folder
        raise NoSweepError(name)
    path = sweeps_folder() / name / "sweep.yaml"
    try:
        sweep = read_sweep(decode_object(read_regular(path, MAX_BYTES)))
    except (FileNotFoundError, NotADirectoryError):
        raise NoSweepError(name) from None
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from None
    return msgspec.structs.replace(sweep, metadata=msgspec.structs.replace(sweep.metadata, name=name))


def create_sweep(sweep: TrainingSweep, source_folder: Path) -> TrainingSweep:
    """Create a sweep, or go on with the one of that name.

    Args:
        sweep: a valid one.
        source_folder: of its file, which `workingDir` of its jobs is relative to.

    Raises:
        ValueError: there is one of that name that differs in more than `MAY_CHANGE`.
    """
    name = sweep.metadata.name
    folder = sweeps_folder() / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(NoSweepError):
        before = load_sweep(name)
        fields = {each: getattr(sweep.spec, each) for each in MAY_CHANGE}
        if msgspec.structs.replace(before.spec, **fields) != sweep.spec:
            differing = [
                wire
                for field, wire in zip(sweep.spec.__struct_fields__, sweep.spec.__struct_encode_fields__, strict=True)
                if field not in MAY_CHANGE and getattr(sweep.spec, field) != getattr(before.spec, field)
            ]
            raise ValueError(
                f"Sweep `{name}` exists and differs in {', '.join(f'`spec.{each}`' for each in differing)}: give this "
                f"one another name with `--name NEW`, or delete the old one with `torchyard sweep rm {name}`."
            )
        sweep = msgspec.structs.replace(before, spec=sweep.spec)
        _write(folder, sweep)
        return sweep
    taken = [number for number in range(MAX_TRIALS) if run_folder(trial_name(name, number)).job_file.exists()]
    if taken:
        raise ValueError(
            f"Run `{trial_name(name, taken[0])}` exists and is no trial of this sweep: give the sweep another name "
            f"with `--name NEW`, or delete the run with `torchyard rm {trial_name(name, taken[0])}`."
        )
    metadata = msgspec.structs.replace(
        sweep.metadata,
        uid=str(uuid.uuid4()),
        creation_timestamp=Time.of(time.time()),
        annotations={**sweep.metadata.annotations, SOURCE_FOLDER: recordable(source_folder)},
    )
    sweep = msgspec.structs.replace(sweep, metadata=metadata)
    _write(folder, sweep)
    return sweep


@contextlib.contextmanager
def control_sweep(name: str) -> Iterator[None]:
    """Hold the lock for controlling a sweep.

    Raises:
        SweepBusyError: another one does.
    """
    lock = take_lock(sweeps_folder() / name / "lock")
    if lock is None:
        raise SweepBusyError(f"Sweep `{name}` is controlled by another process: end that one first.")
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(lock)


def is_sweep_controlled(name: str) -> bool:
    """Return whether a process controls a sweep."""
    return is_locked(sweeps_folder() / name / "lock")


def interrupt_sweep(name: str) -> None:
    """Ask the process that controls a sweep to save and stop its trials, as Ctrl-C does.

    Raises:
        ValueError: no process controls it, or not one of this user.
    """
    path = sweeps_folder() / name / "lock"
    if not is_locked(path):
        raise ValueError(f"No process controls sweep `{name}`: its trials do not run.")
    try:
        os.kill(int(read_regular(path, MAX_LOCK_BYTES)), signal.SIGINT)
    except (OSError, ValueError) as error:
        raise ValueError(f"The process that controls sweep `{name}` cannot be interrupted: {error}.") from error


def remove_sweep(sweep: TrainingSweep) -> None:
    """Delete a sweep with its trials. Blocks.

    Raises:
        SweepBusyError: a process controls it.
        ValueError: a trial cannot be removed.
    """
    with control_sweep(sweep.metadata.name):
        for job in trial_jobs(sweep).values():
            remove_run(run_folder(job.metadata.name))
        shutil.rmtree(sweeps_folder() / sweep.metadata.name)


def trial_jobs(sweep: TrainingSweep) -> dict[int, TrainingJob]:
    """Return the jobs of a sweep's trials by number; a run of another sweep does not count, whatever its name.

    Raises:
        ValueError: the file of a trial was damaged.
    """
    found: dict[int, TrainingJob] = {}
    for number in range(MAX_TRIALS):
        folder = run_folder(trial_name(sweep.metadata.name, number))
        job = read_run(folder) if folder.job_file.exists() else None
        if job is not None and job.metadata.labels.get(SWEEP_UID) == sweep.metadata.uid:
            found[number] = job
    return found


def load_with_trials(name: str) -> tuple[TrainingSweep, dict[int, TrainingJob]]:
    """Return a sweep, and the jobs of its trials by number, each of which `trial_of` can read. Blocks.

    Raises:
        NoSweepError: there is no such sweep.
        ValueError: it, or what it stored on a trial, was damaged.
    """
    sweep = load_sweep(name)
    jobs = trial_jobs(sweep)
    for job in jobs.values():
        trial_of(job)
    return sweep, jobs


def create_trial(sweep: TrainingSweep, record: TrialRecord) -> TrainingJob:
    """Create the run of a trial; one whose parameters make no job has failed.

    Raises:
        ValueError: its name is taken.
        OSError: it cannot be written.
    """
    job = trial_job(sweep, record)
    spec = msgspec.structs.replace(
        job.spec, metrics=msgspec.structs.replace(job.spec.metrics, interval=METRICS_INTERVAL)
    )
    job = msgspec.structs.replace(job, spec=spec)
    if programs := sweep.metadata.annotations.get(PROGRAM_FOLDER):
        job = with_programs(job, Path(str(programs)))
    folder = run_folder(job.metadata.name)
    made = create_run(folder, job, Path(str(sweep.metadata.annotations.get(SOURCE_FOLDER) or ".")))
    if rejected := trial_of(made).record.rejected:
        status = TrainingJobStatus(
            state=State.FAILED, reason=Reason.INVALID_SPEC, message=f"{rejected}.", completion_time=Time.of(time.time())
        )
        made = msgspec.structs.replace(made, status=status)
        write_status_file(folder, made)
    return made


def edit_trial(
    folder: RunFolder, *, suspend: bool, unit: Unit | None = None, values: dict[str, Value] | None = None
) -> TrainingJob:
    """Stop or continue a trial, and store the reason in the same write."""
    return edit_job(folder, lambda job: edited(job, suspend=suspend, unit=unit, values=values))


def _write(folder: Path, sweep: TrainingSweep) -> None:
    write_atomic(folder / "sweep.yaml", encode_object(sweep_document(sweep)))
