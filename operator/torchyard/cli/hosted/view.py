"""A run of this machine as a client shows it: a live view, or its output as lines that a client can resume."""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from torchyard.cli.commands.foreground import Watching
from torchyard.cli.errors import FAILED
from torchyard.cli.output import say
from torchyard.cli.views.outcome import exit_code, outcome_of
from torchyard.cli.views.program_output import several_ranks
from torchyard.client.errors import TorchYardError
from torchyard.client.local import Run, find, load
from torchyard.local.run import Event, RunFolder, events

LOOK_SECONDS = 0.25
QUEUE_SECONDS = 5.0
ABANDONED_SECONDS = 120.0
"""A controller that was killed is started again long before."""
READ_BYTES = 1024 * 1024


def attach(name: str, offsets: str = "{}") -> int:
    """Show a run until it is over: a live view on a terminal, else its output as JSON lines that a client can resume.

    Args:
        name: of the run.
        offsets: of each log, as of the last line that the client has.
    """
    folder = find(name)
    live = sys.stdout.isatty()
    run = asyncio.run(_shown(folder, lambda: None if live else _Frames(folder, json.loads(offsets)), quiet=False))
    for line in outcome_of(run.job, folder):
        say(line)
    return exit_code(run.job)


async def _shown(folder: RunFolder, frames: "Callable[[], _Frames | None]", *, quiet: bool) -> Run:
    from torchyard.cli.views.terminal import drawn, view_for_this_terminal

    watching, queue = Watching(folder, quiet=quiet), _Queue(folder)
    output, shown, alone_since = frames(), set[Event](), 0.0
    async with drawn(watching.snapshot, view_for_this_terminal()):
        while True:
            run = load(folder)
            fresh = [event for event in events(folder) if event not in shown]
            shown.update(fresh)
            watching.changed(run.job, fresh)
            queued = await queue.has_it()
            over = run.job.status.state.terminal or (run.job.spec.suspend and not queued)
            over = over and not run.controlled
            if output is not None:
                output.write(last=over)
            if over:
                return run
            alone_since = 0.0 if run.controlled or queued else alone_since or time.monotonic()
            if alone_since and time.monotonic() - alone_since > ABANDONED_SECONDS:
                raise TorchYardError(
                    f"the run {folder.name!r} has had no controller for {ABANDONED_SECONDS:.0f} s",
                    f"`torchyard resume {folder.name}` starts one", FAILED,
                )  # fmt: skip
            await asyncio.sleep(LOOK_SECONDS)


class _Queue:
    """Whether a run is in Slurm's queue, asked every few seconds; what it waits for is printed when that changes."""

    def __init__(self, folder: RunFolder) -> None:
        from torchyard.hosts.slurm import read_slurm

        self._settings = read_slurm(folder)
        self._state, self._asked = "", 0.0

    async def has_it(self) -> bool:
        """Return whether it is in the queue, waiting or running."""
        from torchyard.hosts.slurm import state_of

        if self._settings is None:
            return False
        if not self._asked or time.monotonic() - self._asked > QUEUE_SECONDS:
            state = await asyncio.to_thread(state_of, self._settings.job)
            self._asked = time.monotonic()
            if state != self._state:
                say(f"Slurm job {self._settings.job}: {state or 'has left the queue'}")
            self._state = state
        return bool(self._state)


class _Frames:
    """Writes what is new in the logs of all ranks as JSON lines, each with the place after it."""

    def __init__(self, folder: RunFolder, offsets: dict[str, list[int]]) -> None:
        self._folder = folder
        self._places: dict[str, list[int]] = offsets  # inode and offset
        self._several = several_ranks(load(folder).job.spec)

    def write(self, *, last: bool) -> None:
        """Write whole lines; with `last` also one without an end."""
        for path in sorted(self._folder.pods.glob("*/logs/rank-*.log")):
            key = path.relative_to(self._folder.pods).as_posix()
            for text in self._read(key, path, last=last):
                frame = {"log": key, "place": self._places[key], "several": self._several, "text": text}
                sys.stdout.write(json.dumps(frame) + "\n")
        sys.stdout.flush()

    def _read(self, key: str, path: Path, *, last: bool) -> Iterator[str]:
        while True:
            try:
                with path.open("rb") as file:
                    status = os.fstat(file.fileno())
                    inode, offset = self._places.get(key, [status.st_ino, 0])
                    if inode != status.st_ino or status.st_size < offset:
                        inode, offset = status.st_ino, 0
                    file.seek(offset)
                    data = file.read(READ_BYTES)
            except OSError:
                return
            end = len(data) if (last or len(data) == READ_BYTES) else data.rfind(b"\n") + 1
            if not end:
                return
            self._places[key] = [inode, offset + end]
            yield data[:end].decode("utf-8", "replace")
