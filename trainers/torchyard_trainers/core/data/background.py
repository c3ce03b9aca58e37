"""The check of all records of a large set beside training, in processes of low priority; memory does not grow with it.

A bad record that a step reads before the check comes to it is found there, too: see `Samples`.
"""

import json
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from torchyard_trainers.core.data.cache import own_folder
from torchyard_trainers.core.data.mixture import leaves
from torchyard_trainers.core.data.rows import Rows, TooLongError, digest_of
from torchyard_trainers.core.data.scan import CHUNK, NAMED, Encode, Size, encoded
from torchyard_trainers.core.exits import ConfigError, DataError, StorageError, TrainerError

SAMPLED = 2000  # records that are checked before the first step, evenly spread
QUIET_SECONDS = 60.0  # between lines about the progress
_NICE = 19  # the lowest priority: readers of the next batch come first


_ERRORS: dict[int, type[TrainerError]] = {each.code: each for each in (DataError, StorageError, ConfigError)}


def check_some(rows: Rows, encode: Encode, *, skip_bad: bool, fix: str) -> list[Any]:
    """Encode some records that are evenly spread; return the samples of those that can be used.

    Raises:
        DataError: none can be used, or one cannot and bad ones are not skipped.
    """
    count = min(len(rows), SAMPLED)
    found, first = [], None
    for number in range(count):
        try:
            found.append(encoded(rows, encode, number * len(rows) // count))
        except DataError as error:
            first = first or error
            if not skip_bad and not isinstance(error.__cause__, TooLongError):
                raise DataError(f"{error} (the others are not checked yet; {fix})") from error
    if not found:
        raise DataError(f"{first} (nor can any of {count} records that are evenly spread)")
    return found


class BackgroundScan:
    """Checks all records of some sets; `poll` takes what the processes have found.

    Attributes:
        records: of all files.
    """

    def __init__(
        self,
        sets: Sequence[Rows],
        encode: Encode,
        size: Callable[[Any], Size | int],
        *,
        skip_bad: bool,
        encoding: str = "",
        processes: int = 1,
        cache: Path | None = None,
        report: Callable[[str], None] = lambda _: None,
        fix: str = "correct them",
    ) -> None:
        """Prepare the check of each file that `sets` are read from; see `scan` for the arguments."""
        self._files = list(
            {digest_of(each.fingerprint, str(len(each))): each for rows in sets for each in leaves(rows)}.values()
        )
        self._encode, self._size, self._skip_bad, self._fix = encode, size, skip_bad, fix
        self._processes, self._report, self._told = processes, report, time.monotonic()
        key = digest_of("background", encoding, *(each.fingerprint for each in self._files))
        self._stored = (cache or own_folder()) / f"{key}.checked"
        self._counts: Counter[str] = Counter()
        self._problems: list[str] = []
        self._running: dict[Connection, Any] = {}
        self._ended = False
        self.records = sum(map(len, self._files))

    def start(self) -> None:
        """Start the processes, unless this machine has checked these files before. Call it on one rank."""
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            tree = json.loads(self._stored.read_text())
            self._counts.update({str(name): int(count) for name, count in tree["counts"].items()})
            self._problems, self._ended = [str(each) for each in tree["problems"]], True
            return
        context = multiprocessing.get_context("fork")
        for number in range(self._processes):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=self._work, args=(theirs, number), daemon=True)
            process.start()
            theirs.close()
            self._running[ours] = process
        self._report(
            f"checking {self.records:,} records in the background; bad ones are found there or when they are read"
        )

    @property
    def checked(self) -> int:
        """The number of records that have been checked."""
        return self._counts["checked"]

    @property
    def counts(self) -> dict[str, int]:
        """Records until here that are `bad`, `too_long` or `truncated`, and tokens that are `used` or `lost`."""
        return {name: self._counts[name] for name in ("bad", "too_long", "truncated", "used", "lost")}

    @property
    def problems(self) -> Sequence[str]:
        """What is wrong with the first bad records, with their places."""
        return self._problems

    def poll(self) -> None:
        """Take what has been found, without waiting; report the progress.

        Raises:
            DataError: a record cannot be used, and bad ones are not skipped.
            TrainerError: a file cannot be read any more.
        """
        for channel in list(self._running):
            with suppress(EOFError):
                while channel.poll():
                    self._take(json.loads(channel.recv_bytes()))
                continue
            self._end(channel)
        if self._problems and not self._skip_bad:
            self.close()
            others = f"; and {self._counts['bad'] - 1} others until there" if self._counts["bad"] > 1 else ""
            raise DataError(
                f"{self._problems[0]} (checked {self.checked:,} of {self.records:,} records{others}; {self._fix})"
            )
        if self._running and (now := time.monotonic()) - self._told > QUIET_SECONDS:
            self._told = now
            self._report(self.progress)

    @property
    def progress(self) -> str:
        """How far the check is, as a sentence."""
        bad = self._counts["bad"] + self._counts["too_long"]
        skipped = f", {bad:,} of them cannot be used and are skipped" if bad else ""
        return (
            f"checking records in the background: {self.checked:,} of {self.records:,}, "
            f"{100 * self.checked // self.records} %{skipped}"
        )

    @property
    def is_complete(self) -> bool:
        """Whether all records have been checked."""
        return self._ended

    def close(self) -> None:
        """End the processes."""
        for process in self._running.values():
            process.kill()
            process.join()
        self._running = {}

    def _take(self, part: Mapping[str, Any]) -> None:
        if "error" in part:
            self.close()
            raise _ERRORS.get(part["code"], DataError)(part["error"])
        self._counts.update(part["counts"])
        self._problems = [*self._problems, *part["problems"]][:NAMED]

    def _end(self, channel: Connection) -> None:
        """Note that a process has ended: it is done, or something has ended it."""
        process = self._running.pop(channel)
        process.join()
        channel.close()
        if process.exitcode:
            self._report(
                f"the check of records in the background ended with code {process.exitcode} at {self.checked:,} of "
                f"{self.records:,}; the others are checked when they are read"
            )
        elif not self._running and self.checked == self.records:
            self._ended = True
            part = self._stored.with_suffix(f".part-{os.getpid()}")
            part.write_text(json.dumps({"counts": self._counts, "problems": self._problems}))
            part.replace(self._stored)
            self._report(self.progress.replace("checking", "checked"))

    def _work(self, channel: Connection, number: int) -> None:
        """Check every `processes`th chunk of each file, in the order of the file; runs in its own process."""
        for each in (signal.SIGTERM, signal.SIGINT):  # not what the trainer does to save
            signal.signal(each, signal.SIG_DFL)
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        os.nice(_NICE)
        parent = os.getppid()
        try:
            for rows in self._files:
                for begin in range(number * CHUNK, len(rows), self._processes * CHUNK):
                    found = self._checked(rows, range(begin, min(begin + CHUNK, len(rows))))
                    channel.send_bytes(json.dumps(found).encode())
                    if os.getppid() != parent:
                        return
        except TrainerError as error:
            channel.send_bytes(json.dumps({"error": str(error), "code": error.code}).encode())
        except (BrokenPipeError, ConnectionResetError):  # the trainer has ended
            pass

    def _checked(self, rows: Rows, indices: range) -> dict[str, Any]:
        counts, problems = Counter({"checked": len(indices)}), list[str]()
        for index in indices:
            try:
                found = self._size(encoded(rows, self._encode, index))
            except DataError as error:
                too_long = isinstance(error.__cause__, TooLongError)
                counts["too_long" if too_long else "bad"] += 1
                problems += [] if too_long else [str(error)]
                continue
            length, lost = found if isinstance(found, tuple) else (found, 0)
            counts.update({"used": length, "lost": lost, "truncated": int(lost > 0)})
        return {"counts": counts, "problems": problems[:NAMED]}
