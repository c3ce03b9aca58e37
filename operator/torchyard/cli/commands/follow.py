"""A job of a cluster in this terminal: the live view and the output of `torchyard run`, fed by the API server."""

import asyncio
import contextlib
import time
from collections import deque
from typing import TextIO

from torchyard.api.formatting import addressed, clean
from torchyard.api.resource import TrainingJob
from torchyard.api.status import State
from torchyard.cli.commands.foreground import KEPT_EVENTS
from torchyard.cli.errors import FAILED
from torchyard.cli.output import say
from torchyard.cli.views.curve import History
from torchyard.cli.views.outcome import exit_code
from torchyard.cli.views.program_output import KEPT_LINES, OutputLine, several_ranks
from torchyard.cli.views.snapshot import Snapshot, learned, record
from torchyard.cli.views.terminal import drawn, is_live, view_for_this_terminal
from torchyard.client.backend import Away, Backend, LogLine
from torchyard.client.errors import TorchYardError
from torchyard.client.explanation import last_lines
from torchyard.local.run import Event

LOOK_SECONDS = 1.0


async def follow(backend: Backend, name: str, uid: str = "", *, output: TextIO | None = None) -> int:
    """Show a job until it ends; return the exit code for its end.

    The terminal only watches: after Ctrl-C the job still runs.

    Args:
        backend: the cluster.
        name: of the job.
        uid: of the job.
        output: gets what the program writes, unless it is a terminal that shows it under the curve; None: nothing.
    """
    following = _Following(backend, name, uid)
    printed = _Printed(None if output is None or (is_live() and output.isatty()) else output, following)
    async with drawn(following.snapshot, view_for_this_terminal()):
        reading = asyncio.create_task(_read_logs(backend, name, uid, printed)) if output is not None else None
        try:
            await following.until_over()
            if reading is not None:
                await reading
        finally:
            if reading is not None:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
    for line in outcome_of(following.job, backend, gone=following.gone):
        say(line)
    return exit_code(following.job) if following.job is not None and not following.gone else FAILED


def outcome_of(job: TrainingJob | None, backend: Backend, *, gone: bool) -> list[str]:
    """Lines for stderr after the view is closed."""
    if job is None or gone:
        return [f"{job.metadata.name if job else 'the job'} was deleted"]
    name, state, flags = job.metadata.name, job.status.state, backend.flags
    if state == State.SUCCEEDED:
        return [learned(job), f"next: torchyard fetch {name}{flags}"]
    if state == State.FAILED:
        more = f"more: `torchyard explain {name}{flags}`, `torchyard logs {name}{flags}`"
        return [f"{name} failed: {addressed(clean(job.status.message), name, backend.flags)}", *last_lines(job), more]
    return [f"{name} is suspended; `torchyard resume {name}{flags}` continues it from its newest checkpoint"]


class _Following:
    """State of a job that this terminal watches."""

    def __init__(self, backend: Backend, name: str, uid: str) -> None:
        self.backend, self.name, self.uid = backend, name, uid
        self.job: TrainingJob | None = None
        self.gone = False
        self.events: list[Event] = []
        self.losses = History()
        self.notice = ""
        self.output: deque[OutputLine] = deque(maxlen=KEPT_LINES)

    async def until_over(self) -> None:
        """Follow every change, and wait while the API server does not answer."""
        async for seen in self.backend.states(self.name, self.uid):
            if seen is None:
                self.gone = True
                return
            if isinstance(seen, Away):
                self.notice = f"the API server does not answer, the job continues: {seen.why}"
                continue
            await self._take(seen)
            if seen.is_over:
                return

    async def _take(self, seen: TrainingJob) -> None:
        if self.job is None or seen.status != self.job.status:
            with contextlib.suppress(TorchYardError):  # the next state brings them
                self.events = (await self.backend.events(self.name))[-KEPT_EVENTS:]
        self.job, self.notice = seen, ""
        record(self.losses, seen)

    def snapshot(self) -> Snapshot | None:
        """Return the job now; None before anything is known of it."""
        if self.job is None:
            return None
        return Snapshot(
            self.job,
            time.time(),
            losses=self.losses.points,
            events=self.events,
            notice=self.notice,
            output=list(self.output),
            flags=self.backend.flags,
        )


async def _read_logs(backend: Backend, name: str, uid: str, printed: "_Printed") -> None:
    """Print the output of the program; the view continues if it cannot be read or printed."""
    try:
        async for line in backend.logs(name, uid, follow=True):
            printed.line(line)
    except TorchYardError as error:
        say(f"torchyard: the output of the program cannot be shown: {error}")
    except OSError:  # its reader is gone, which does not affect the job
        return


class _Printed:
    """Prints lines of the program to a stream, or keeps the last ones for the view."""

    def __init__(self, stream: TextIO | None, following: "_Following") -> None:
        self.stream, self.following = stream, following
        self.ranks: set[int] = set()

    def line(self, line: LogLine) -> None:
        """Print one line, after its rank where there are several; lines of the agent are left out."""
        job = self.following.job
        if line.rank is None and (job is None or job.spec.launcher.kind == "agent"):
            return
        number = line.rank if line.rank is not None else int(line.pod.rpartition("-")[2])
        self.ranks.add(number)
        if self.stream is None:
            self.following.output.append(OutputLine(number, line.text))
            return
        several = len(self.ranks) > 1 or (job is not None and several_ranks(job.spec))
        who = f"rank {number}" if line.rank is not None else line.pod
        print(f"[{who}] {line.text}" if several else line.text, file=self.stream, flush=True)
