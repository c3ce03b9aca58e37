"""Fetch the code and the inputs of a job, and report on it: a program that the agent runs before the first round.

It runs in the Python of the image, whose libraries it uses. Each line that it writes to the pipe of the agent is a JSON
object: the state of every input, and at the end `exit` with a message. What fails and may work again is tried again.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from torchyard_agent.exit_codes import ExitCode
from torchyard_agent.inputs import buckets, cache, code, https, hub, source
from torchyard_agent.inputs.source import Download, FetchError, Input, Listing, RejectedInputError, SourceFile
from torchyard_agent.workers.code import MismatchError

VARIABLE = "TORCHYARD_INPUTS"
ATTEMPTS = 6
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0
AT_ONCE = 8
"""Files that are fetched at the same time."""
REPORT_SECONDS = 1.0
LOCK_SECONDS = 1.0
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Progress:
    """Writes the state of all inputs to the agent, at most once a second while only bytes change."""

    def __init__(self, names: List[str], write: Callable[[Dict[str, Any]], None]) -> None:
        self._states: Dict[str, Dict[str, Any]] = {name: {"state": "waiting"} for name in names}
        self._bytes: Dict[str, Dict[str, int]] = {name: {} for name in names}
        self._write = write
        self._due = 0.0
        self._lock = threading.Lock()

    def set(self, name: str, **fields: Any) -> None:
        """Change fields of an input; None removes one."""
        with self._lock:
            state = {**self._states[name], **fields}
            self._states[name] = {field: value for field, value in state.items() if value is not None}
            self._send(0.0)

    def have(self, name: str, file: str, length: int) -> None:
        """Record how many bytes of a file are there."""
        with self._lock:
            self._bytes[name][file] = length
            self._states[name]["bytes"] = sum(self._bytes[name].values())
            self._send(REPORT_SECONDS)

    def _send(self, pause: float) -> None:
        now = time.monotonic()
        if pause and now < self._due:
            return
        self._due = now + REPORT_SECONDS
        self._write({"inputs": [{"name": name, **state} for name, state in self._states.items()]})


def fetch_all(
    inputs: List[Input],
    folder: Path,
    views: Path,
    progress: Progress,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Fetch each input into the cache and show it below `views`.

    Raises:
        RejectedInputError: trying again cannot help; the message begins with the name of the input.
        FetchError: all attempts failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for item in inputs:
        _attempt(
            item.name, f"input {item.name}: ", partial(_fetch, item, folder, views, progress, sleep), progress, sleep
        )


def fetch_code(place: code.CodeSource, progress: Progress, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Make the code of the job known to rounds.

    Raises:
        MismatchError: it is not what the job names.
        RejectedInputError: trying again cannot help.
        FetchError: all attempts failed.
    """
    _attempt(code.NAME, "", lambda: code.prepare(place, progress, sleep), progress, sleep)


def _attempt(
    name: str, prefix: str, step: Callable[[], None], progress: Progress, sleep: Callable[[float], None]
) -> None:
    for attempt in itertools.count(1):
        try:
            step()
        except RejectedInputError as error:  # noqa: PERF203 - an attempt takes far longer than a try
            raise RejectedInputError(f"{prefix}{error}") from error
        except (FetchError, OSError) as error:
            sentence = _sentence(error)
            if attempt == ATTEMPTS:
                raise FetchError(f"{prefix}{sentence} ({attempt} attempts)") from error
            progress.set(name, message=sentence)
            most = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** (attempt - 1))
            sleep(most * random.uniform(0.5, 1.0))  # noqa: S311 - so that pods do not come back together
        else:
            return


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno in _FULL:
        return f"no space is left on the disk of the cache ({error.strerror})"
    return hub.sentence(error)


def _fetch(item: Input, folder: Path, views: Path, progress: Progress, sleep: Callable[[float], None]) -> None:
    revision = _pinned_revision(item)
    entry = cache.Entry(folder, item.key(revision)) if revision else None
    manifest = entry.manifest() if entry is not None else None
    if entry is None or manifest is None:
        provider = _provider(item)
        listing = provider.resolve()
        revision, entry = listing.revision, cache.Entry(folder, item.key(listing.revision))
        progress.set(item.name, revision=revision, totalBytes=listing.total, message=None)
        while (manifest := entry.manifest()) is None:
            with entry.locked() as mine:
                if mine:
                    manifest = entry.manifest() or _fill(entry, item, provider, listing, progress)
                    break
            progress.set(item.name, message="another process fetches it")
            sleep(LOCK_SECONDS)
    cache.show(entry.folder, views / item.name)
    size = manifest["bytes"]
    progress.set(
        item.name, state="ready", revision=revision, bytes=size, totalBytes=size, files=manifest["files"], message=None
    )


def _pinned_revision(item: Input) -> str:
    """Return the revision, if no request to the source is needed for it."""
    if item.sha256 or item.revision:
        return item.sha256 or item.revision
    named = item.source.rpartition("@")[2] if item.source.startswith("hf://") else ""
    return named if source.COMMIT.fullmatch(named) else ""


def _fill(entry: cache.Entry, item: Input, provider: _Provider, listing: Listing, progress: Progress) -> Dict[str, Any]:
    progress.set(item.name, state="fetching", message=None)
    for folder in (entry.files, entry.scratch):
        folder.mkdir(parents=True, exist_ok=True)
    _drop_others(entry, listing)
    entry.check_space(listing)
    download = provider.download(listing.revision, entry.scratch)
    work = _Work(entry, item, provider, download, progress, threading.Event())
    pool = ThreadPoolExecutor(AT_ONCE)
    tasks = [pool.submit(_file, work, file) for file in listing.files]
    try:
        for task in as_completed(tasks):
            task.result()
    except BaseException as error:
        work.stopped.set()
        # What may be tried again must have ended; after a rejection, the process ends.
        pool.shutdown(wait=not isinstance(error, RejectedInputError), cancel_futures=True)
        raise
    pool.shutdown()
    if provider.has_changed(listing):
        raise FetchError(f"{item.shown} has changed while it was fetched")
    return entry.commit(listing)


class _Work(NamedTuple):
    """What the files of one input are fetched with."""

    entry: cache.Entry
    item: Input
    provider: _Provider
    download: Download
    progress: Progress
    stopped: threading.Event


def _drop_others(entry: cache.Entry, listing: Listing) -> None:
    """Delete files of an earlier attempt that the listing does not have."""
    names = {file.name for file in listing.files}
    for root, _, files in os.walk(entry.files):
        for name in files:
            path = Path(root, name)
            if path.relative_to(entry.files).as_posix() not in names:
                path.unlink()


def _file(work: _Work, file: SourceFile) -> None:
    """Fetch one file and verify it; what was continued and is wrong is fetched once more from its begin."""
    path = work.entry.path_of(file)

    def report(length: int) -> None:
        if work.stopped.is_set():
            raise FetchError("another file cannot be fetched")
        work.progress.have(work.item.name, file.name, length)

    continued = path.exists()
    while True:
        work.download(file, path, report)
        path.touch()
        report(path.stat().st_size)
        wrong = cache.differs(path, file, report)
        if not wrong or work.provider.excuses(file):
            return
        path.unlink()
        if not continued:
            raise RejectedInputError(f"{file.name} of {work.item.shown} is not what it should be: {wrong}")
        continued = False


class _Provider:
    """One kind of source, and how its files are fetched."""

    def __init__(
        self,
        resolve: Callable[[], Listing],
        download: Callable[[str, Path], Download],
        excuses: Callable[[SourceFile], bool] = lambda _file: False,
        *,
        pinned: bool = True,
    ) -> None:
        self.resolve, self.download, self.excuses, self._pinned = resolve, download, excuses, pinned

    def has_changed(self, listing: Listing) -> bool:
        """Return whether the source has other files by now; one of commits or digests cannot."""
        return not self._pinned and self.resolve().revision != listing.revision


def _provider(item: Input) -> _Provider:
    scheme = item.source.partition("://")[0]
    if scheme == "hf":
        return _Provider(lambda: hub.resolve(item), hub.downloader)
    if scheme in ("s3", "gs"):
        bucket = buckets.Bucket(item)
        return _Provider(
            bucket.resolve, lambda _revision, _scratch: bucket.download, bucket.has_other_tag, pinned=False
        )
    return _Provider(lambda: https.resolve(item), lambda _revision, _scratch: https.download)


def names(source_of_code: Optional[str], text: Optional[str]) -> List[str]:
    """Return the names under which the code and the inputs of a job are reported."""
    inputs = [each.name for each in source.read(text)] if text else []
    return [*([code.NAME] if source_of_code else []), *inputs]


def run(text: Optional[str], write: Callable[[Dict[str, Any]], None], source_of_code: Optional[str] = None) -> int:
    """Fetch what `TORCHYARD_INPUTS` and `TORCHYARD_CODE_SOURCE` name; return the exit code."""
    progress = Progress(names(source_of_code, text), write)
    rejected, failed = ExitCode.CODE_REJECTED, ExitCode.CODE_NOT_FETCHED
    message: Optional[str] = None
    result = ExitCode.DONE
    try:
        if source_of_code:
            fetch_code(code.read(source_of_code), progress)
        rejected, failed = ExitCode.INPUT_REJECTED, ExitCode.INPUT_NOT_FETCHED
        if text:
            settings = json.loads(text)
            fetch_all(source.read(text), Path(settings["cache"]), Path(settings["views"]), progress)
    except MismatchError as error:
        result, message = ExitCode.CODE_MISMATCH, str(error)
    except RejectedInputError as error:
        result, message = rejected, str(error)
    except (FetchError, OSError) as error:
        result, message = failed, _sentence(error)
    write({"exit": int(result), "message": message or ""})
    return int(result)


def main() -> None:
    """Fetch, and write lines to the descriptor that is the first argument."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    pipe = os.fdopen(int(sys.argv[1]), "wb", buffering=0)
    lock = threading.Lock()

    def write(message: Dict[str, Any]) -> None:
        with lock:
            try:
                pipe.write(json.dumps(message).encode() + b"\n")
            except OSError:  # the agent is gone
                os._exit(ExitCode.TERMINATED)

    os._exit(
        run(os.environ.get(VARIABLE), write, os.environ.get(code.VARIABLE))
    )  # threads of libraries may sit in a blocked call
