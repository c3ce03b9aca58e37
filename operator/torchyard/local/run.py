"""The folder of one run, and how any process reads and edits it: its job, status and events.

The controlling process owns `status.json`, `events.jsonl` and `pods/`; any terminal may edit `job.yaml`, one at a time.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from torchyard.api.files import read_end, read_regular
from torchyard.api.resource import TrainingJob, job_document, read_job, read_status, status_document
from torchyard.api.values import Time


class FolderGoneError(FileNotFoundError):
    """A run's folder was moved away or removed, before its lock was there."""


class RunFolder(Struct, frozen=True):
    """`$TORCHYARD_HOME/runs/<name>/`."""

    path: Path

    @property
    def name(self) -> str:
        """Name of the run, which is the name of the job."""
        return self.path.name

    @property
    def home(self) -> Path:
        """`$TORCHYARD_HOME`."""
        return self.path.parent.parent

    @property
    def job_file(self) -> Path:
        """The object without its status: apiVersion, kind, metadata, spec. JSON, which is YAML, too."""
        return self.path / "job.yaml"

    @property
    def status_file(self) -> Path:
        """The status, written by the controlling process only."""
        return self.path / "status.json"

    @property
    def events_file(self) -> Path:
        """One event a line."""
        return self.path / "events.jsonl"

    @property
    def lock_file(self) -> Path:
        """Held (flock) by the controlling process, whose pid it holds."""
        return self.path / "lock"

    @property
    def socket_file(self) -> Path:
        """Where the controlling process listens for agents."""
        return self.path / "intake.sock"

    @property
    def pods(self) -> Path:
        """One folder a pod."""
        return self.path / "pods"

    @property
    def checkpoints(self) -> Path:
        """`TORCHYARD_CHECKPOINT_DIR` of every pod."""
        return self.path / "checkpoints"

    @property
    def code(self) -> Path:
        """The code of its rounds, unpacked: a folder named by its digest."""
        return self.path / "code"

    @property
    def archives(self) -> Path:
        """The code of all runs, in parts: a folder for each digest."""
        return self.home / "code"

    @property
    def cache(self) -> Path:
        """`TORCHYARD_CACHE_DIR` of every pod."""
        return self.path / "cache"


def home_folder() -> Path:
    """`$TORCHYARD_HOME`, `~/.torchyard` without it.

    Raises:
        OSError: this user has no home folder, or its path is not UTF-8.
    """
    try:
        home = Path(os.environ.get("TORCHYARD_HOME") or Path.home() / ".torchyard").expanduser().absolute()
    except RuntimeError as error:  # neither HOME nor an entry in the list of users
        raise OSError(f"the folder of runs is unknown ({error}): set TORCHYARD_HOME to a folder") from None
    try:
        str(home).encode()
    except UnicodeEncodeError:
        raise OSError(f"the folder of runs, {str(home)!r}, is not UTF-8: set TORCHYARD_HOME to another one") from None
    return home


def run_folder(name: str, home: Path | None = None) -> RunFolder:
    """Return the folder of the run with this name, whether there is one or not."""
    return RunFolder((home or home_folder()) / "runs" / name)


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file: a reader, or a crash at any moment, finds the old content or the new one, never a mixture.

    Only this user may read it (0600): job files and files derived from them may hold secrets.
    """
    import tempfile  # noqa: PLC0415 - slow, and those who only read need none

    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # the error of a failed write names no path
        raise
    _sync_folder(path.parent)


def take_lock(path: Path) -> int | None:
    """Lock a file for this process and those it hands the descriptor to; None if another process holds it.

    The kernel gives the lock back when the last holder is dead, however it died.

    Raises:
        FolderGoneError: the file has no folder.
    """
    while True:
        descriptor = _open_lock(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


@contextlib.contextmanager
def holding_lock(path: Path) -> Iterator[None]:
    """Lock a file, waiting for the process that holds it.

    Raises:
        FolderGoneError: the file has no folder.
    """
    held = False
    while not held:
        descriptor = _open_lock(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if held := _is_at(descriptor, path):
                yield
        finally:
            os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Return whether some living process holds the lock."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _NO_FILE:
            return False
        raise
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def is_controlled(folder: RunFolder) -> int | None:
    """Return the pid of the process that controls the run, 0 if it is not recorded yet; None if no process does."""
    if not is_locked(folder.lock_file):
        return None
    with contextlib.suppress(OSError, ValueError):
        return int(read_regular(folder.lock_file, MAX_LOCK_BYTES))
    return 0


def _open_lock(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError as error:
        raise FolderGoneError(*error.args, str(path)) from error


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether the open file is still the one of this name: a folder that is moved away takes its locks along."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_NO_FILE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP}
MAX_JOB_BYTES = 4 * 1024 * 1024
MAX_STATUS_BYTES = 4 * 1024 * 1024
MAX_LOCK_BYTES = 1024
MAX_EVENTS_BYTES = 1024 * 1024


class Event(msgspec.Struct, frozen=True):
    """One line of `events.jsonl`; `time` is RFC 3339."""

    time: str
    type: str
    reason: str
    message: str

    @property
    def unix(self) -> float | None:
        """Return the time in unix seconds; None if it cannot be read."""
        try:
            return Time.parse(self.time)
        except ValueError:
            return None


class NoRunError(ValueError):
    """There is no such run."""

    def __init__(self, folder: RunFolder) -> None:
        super().__init__(f"There is no run `{folder.name}` in {folder.path.parent}.")


def read_run(folder: RunFolder) -> TrainingJob | None:
    """Return the job with its status; None if there is no such run.

    Its name is that of the folder, by which commands find it: a folder may have been renamed.

    Raises:
        ValueError: the file is not a TrainingJob; names file and field.
    """
    try:
        job = read_job(decode_object(read_regular(folder.job_file, MAX_JOB_BYTES)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ValueError(f"{folder.job_file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{folder.job_file}: {error}") from None
    metadata = job.metadata
    if metadata.name != folder.name:
        metadata = msgspec.structs.replace(metadata, name=folder.name)
    return msgspec.structs.replace(job, metadata=metadata, status=_read_status(folder, job))


def write_job(folder: RunFolder, job: TrainingJob) -> None:
    """Replace `job.yaml`."""
    write_atomic(folder.job_file, encode_object(job_document(job, with_status=False)))


def encode_object(document: dict[str, Any]) -> bytes:
    """Return the content of `job.yaml` or `sweep.yaml`.

    It is JSON, since importing a YAML parser takes longer than everything else that `torchyard ps` does.
    """
    return json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"


def decode_object(data: bytes) -> dict[str, Any]:
    """Return the object of `job.yaml` or `sweep.yaml`; earlier versions wrote YAML that is not JSON.

    Raises:
        ValueError: it is neither, or not an object.
    """
    try:
        document = json.loads(data, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except _NoNumberError as error:
        raise ValueError(f"{error} is not a number of JSON") from None
    except ValueError:
        document = _from_yaml(data)
    if _ESCAPE.search(data) is not None:
        _require_whole_characters(document)
    if not isinstance(document, dict):
        raise ValueError("not an object")  # noqa: TRY004 - one kind for every fault of a file
    return document


_ESCAPE = re.compile(rb"\\[uU]")


class _NoNumberError(Exception):
    """The text holds NaN or an infinity, which Python reads as numbers and JSON does not have."""


def _no_number(text: str) -> float:
    raise _NoNumberError(text)


def _require_whole_characters(document: Any) -> None:
    """Check that UTF-8 can hold all texts: an escape may stand for half of a surrogate pair.

    Raises:
        ValueError: it cannot hold one.
    """
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"a text holds U+{ord(error.object[error.start]):04X}, half of a surrogate pair") from None


def _from_yaml(data: bytes) -> Any:
    import yaml  # noqa: PLC0415 - slow, see `encode_object`

    from torchyard.api.validation import yaml_tree  # noqa: PLC0415 - likewise

    try:
        return yaml_tree.load(data)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise ValueError(f"{where}neither JSON nor YAML ({error.problem})") from None
    except yaml.YAMLError as error:
        raise ValueError(f"neither JSON nor YAML ({str(error).partition(chr(10))[0]})") from None


def edit_job(folder: RunFolder, change: Callable[[TrainingJob], TrainingJob]) -> TrainingJob:
    """Apply `change` to the job as it is now; a changed spec is a new generation.

    Raises:
        NoRunError: there is no such run.
    """
    with editing(folder):
        return change_job(folder, change)


@contextlib.contextmanager
def editing(folder: RunFolder) -> Iterator[None]:
    """Hold the lock for editing `job.yaml` and for moving the folder away.

    Raises:
        NoRunError: there is no such run.
    """
    try:
        with holding_lock(folder.path / "job.lock"):
            yield
    except FolderGoneError:  # even if another run has its name by now
        raise NoRunError(folder) from None
    except FileNotFoundError:
        if folder.path.is_dir():
            raise
        raise NoRunError(folder) from None


def change_job(folder: RunFolder, change: Callable[[TrainingJob], TrainingJob]) -> TrainingJob:
    """Edit the job while holding the lock of `editing`."""
    before = read_run(folder)
    if before is None:
        raise NoRunError(folder)
    after = change(before)
    if after.spec != before.spec:
        metadata = msgspec.structs.replace(after.metadata, generation=before.metadata.generation + 1)
        after = msgspec.structs.replace(after, metadata=metadata)
    if after != before:
        write_job(folder, after)
    return after


def write_status_file(folder: RunFolder, job: TrainingJob) -> None:
    """Replace `status.json`."""
    metadata = {"name": job.metadata.name, "namespace": job.metadata.namespace, "uid": job.metadata.uid}
    document = {"metadata": metadata, "status": status_document(job.status)}
    write_atomic(folder.status_file, msgspec.json.format(msgspec.json.encode(document)))


def append_events(folder: RunFolder, lines: list[Event]) -> None:
    """Add lines to `events.jsonl`, all or none; the older half goes when a megabyte is full.

    Raises:
        OSError: they cannot be written.
    """
    data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    with folder.events_file.open("ab", buffering=0) as file:
        before = file.tell()
        size = before + len(data)
        try:
            while data:
                data = data[file.write(data) :]
        except OSError:
            with contextlib.suppress(OSError):  # half a line would spoil the next one
                os.truncate(file.fileno(), before)
            raise
    if size > MAX_EVENTS_BYTES:
        kept = read_end(folder.events_file, MAX_EVENTS_BYTES // 2)
        write_atomic(folder.events_file, kept[kept.find(b"\n") + 1 :])


def events(folder: RunFolder, last: int = 1000) -> list[Event]:
    """Return the newest events, oldest first; a line cut short by a crash is left out."""
    found: deque[Event] = deque(maxlen=last)
    try:
        for line in read_end(folder.events_file, 2 * MAX_EVENTS_BYTES).split(b"\n"):
            with contextlib.suppress(msgspec.DecodeError, RecursionError):
                found.append(msgspec.json.decode(line, type=Event))
    except OSError:  # none yet, or damaged: they are a record for people, and nothing depends on them
        pass
    return list(found)


def _read_status(folder: RunFolder, job: TrainingJob) -> Any:
    try:
        document = msgspec.json.decode(read_regular(folder.status_file, MAX_STATUS_BYTES))
        if document["metadata"]["uid"] == job.metadata.uid:
            return read_status(document["status"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        # A status can be rebuilt from what is observed; a bad one must not lose a run.
        pass
    return job.status
