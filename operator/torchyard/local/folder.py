"""The folder of one run: where everything about it lives, and how files in it are replaced.

Nothing is kept in memory only: a controller that dies loses nothing, the next one reads on from here.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct


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
        """The object but its status: apiVersion, kind, metadata, spec."""
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
    def cache(self) -> Path:
        """`TORCHYARD_CACHE_DIR` of every pod."""
        return self.path / "cache"


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file: a reader, or a crash at any moment, finds the old content or the new one, never a mixture.

    It is this user's alone (0600): job files and what is made of them may hold secrets.
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
            error.filename = str(path)  # a write that fails does not say where
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
    """Whether some living process holds the lock."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _open_lock(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError as error:
        raise FolderGoneError(*error.args, str(path)) from error


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is still the one of this name: a folder that is moved away takes its locks along."""
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
