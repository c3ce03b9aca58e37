"""Controlling a run from this terminal: start it, show it, and let Ctrl-C save and stop it."""

import asyncio
import contextlib
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from torchyard.api.resource import TrainingJob
from torchyard.api.status import State
from torchyard.cli.errors import FAILED, INTERRUPTED, RefusalError
from torchyard.cli.interrupts import Interrupts
from torchyard.cli.output import Format, emit, say
from torchyard.cli.views.curve import History, StoredCurve
from torchyard.cli.views.program_output import OutputLine, OutputStream, ProgramOutput, several_ranks
from torchyard.cli.views.snapshot import Snapshot, curve_metric, record
from torchyard.cli.views.terminal import drawn, view_for_this_terminal
from torchyard.client.metrics import FILE
from torchyard.client.ranks import Rank, freshen, ranks_of, read_reports
from torchyard.local.run import Event, RunFolder

if TYPE_CHECKING:
    from torchyard.client.bundle.edits import Edits

KEPT_EVENTS = 50


def watch(
    folder: RunFolder,
    output: Format | None = None,
    *,
    quiet: bool = False,
    notify: Sequence[str] = (),
    edits: "Edits | None" = None,
) -> int:
    """Control a run until it ends, or until its code is edited; return the exit code for its end.

    Args:
        folder: of the run.
        output: format in which the final object is printed.
        quiet: show no output of the program.
        notify: program with its arguments that each transition starts.
        edits: of its code; None: edits do not matter.

    Raises:
        RefusalError: another process controls it, or it cannot be controlled here.
    """
    from torchyard.cli.views.outcome import exit_code, outcome_of
    from torchyard.client.run_log import log_to_run_folder

    watching = Watching(folder, quiet=quiet, notify=notify, edits=edits)
    try:
        with log_to_run_folder(folder), streamed(folder, sys.stderr if output else sys.stdout, quiet=quiet):
            job = asyncio.run(watching.until_over())
    except ValueError as error:
        raise RefusalError(str(error).rstrip(".")) from error
    except OSError as error:
        trouble = f"the run {folder.name!r} can no longer be controlled: {error}"
        raise RefusalError(
            trouble, f"fix the cause, then `torchyard resume {folder.name}` continues it", FAILED
        ) from error
    if output is not None:
        from torchyard.api.resource import job_document

        emit(job_document(job), output)
    for line in outcome_of(job, folder) if edits is None or not edits.seen else ():
        say(line)
    if watching.notify_problem:
        say(f"torchyard: {watching.notify_problem}")
    killed = watching.interrupts.kill.is_set() and job.status.state != State.SUCCEEDED
    return INTERRUPTED if killed else exit_code(job)


@contextlib.contextmanager
def streamed(folder: RunFolder, to: TextIO, *, quiet: bool) -> Iterator[None]:
    """Copy the output of the program while the block runs, but where the live view shows it already."""
    from torchyard.cli.views.terminal import is_live
    from torchyard.local.run import read_run

    job = None if quiet or (is_live() and to.isatty()) else read_run(folder)
    if job is None:
        yield
        return
    output = ProgramOutput(folder.pods, folder.name, complete=True)
    stream = OutputStream(output, to.fileno(), prefixed=several_ranks(job.spec))
    try:
        yield
    finally:
        stream.close()


class Watching:
    """State of a run that this terminal controls."""

    def __init__(
        self,
        folder: RunFolder,
        *,
        quiet: bool = False,
        notify: Sequence[str] = (),
        edits: "Edits | None" = None,
    ) -> None:
        self.folder, self.notify, self.notify_problem, self.edits = folder, notify, "", edits
        self.output = None if quiet else ProgramOutput(folder.pods, folder.name)
        self.job: TrainingJob | None = None
        self.interrupts = Interrupts(lambda: str(self.job.spec.grace_period) if self.job else "")
        self.events: deque[Event] = deque(maxlen=KEPT_EVENTS)
        self.losses = History()
        self.stored = StoredCurve(folder.checkpoints / FILE, "loss")
        self.ranks: tuple[Rank, ...] = ()

    async def until_over(self) -> TrainingJob:
        """Control and show the run until it is over."""
        async with drawn(self.snapshot, view_for_this_terminal()):
            with self.interrupts.heard():
                edited = asyncio.create_task(self._stop_once_edited())
                try:
                    job = await self._run()
                finally:
                    edited.cancel()
            self.changed(job, [])
            return job

    async def _stop_once_edited(self) -> None:
        if self.edits is not None:
            await self.edits.wait()
            self.interrupts.stop.set()

    async def _run(self) -> TrainingJob:
        from torchyard.local.controller import run_job

        asked = self.interrupts
        if not self.notify:
            return await run_job(self.folder, on_change=self.changed, stop=asked.stop, kill=asked.kill)
        from torchyard.local.notify_command import NotifyCommand

        async with NotifyCommand(self.notify) as command:
            job = await run_job(
                self.folder, on_change=self.changed, stop=asked.stop, kill=asked.kill, written=command.written
            )
        self.notify_problem = command.problem
        return job

    def changed(self, job: TrainingJob, events: Sequence[Event]) -> None:
        """Show this job and these further events from now on."""
        self.job = job
        self.events.extend(events)

    def snapshot(self) -> Snapshot | None:
        """Return the run now; None before anything is known of it."""
        if self.job is None:
            return None
        reports = read_reports(self.folder.pods, self.job.status.round)
        self.ranks = ranks_of(reports) or self.ranks  # pods that are gone keep their last lines
        job = freshen(self.job, reports)
        record(self.losses, job)
        self.stored.metric = curve_metric(job)
        notice = self.interrupts.notice
        points, missing = (
            (self.stored.points, self.stored.missing) if self.stored.follow() else (self.losses.points, "")
        )
        return Snapshot(job, time.time(), self.ranks, points, list(self.events), notice, self._tail(), missing=missing)

    def _tail(self) -> list[OutputLine]:
        if self.output is None:
            return []
        self.output.look()
        return self.output.tail()
