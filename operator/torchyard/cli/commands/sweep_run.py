"""`torchyard run sweep.yaml`: control a sweep from this terminal and show its trials."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from torchyard.api.formatting import addressed
from torchyard.api.local_volumes import without_folder
from torchyard.api.resource import TrainingJob
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.status import State
from torchyard.cli.commands.job_options import JobOptions
from torchyard.cli.commands.sweep_files import sweep_of
from torchyard.cli.errors import FAILED, INTERRUPTED, STOPPED, SUCCEEDED, RefusalError
from torchyard.cli.interrupts import Interrupts
from torchyard.cli.output import Format, emit, say
from torchyard.cli.views.sweep_table import ended_line, line_of, table_of
from torchyard.cli.views.terminal import drawn, is_live
from torchyard.client.sweep_files import named
from torchyard.sweeps.resource import TrainingSweep
from torchyard.sweeps.trials import trial_of

if TYPE_CHECKING:
    from rich.console import RenderableType


def run(
    options: JobOptions,
    name: str | None,
    output: Format | None,
    on_folders: Callable[[TrainingJobSpec], TrainingJobSpec],
) -> int:
    """Run the sweep of a file until it is over or stopped; an unfinished one goes on.

    Args:
        options: of the command line.
        name: of the sweep; None: that of the file.
        output: format of the final object.
        on_folders: returns the spec of a trial with folders in the place of volumes.

    Raises:
        RefusalError: the file is invalid, the name is taken, or Optuna is not installed.
    """
    from torchyard.client.start import folder_of
    from torchyard.client.sweeps import prepared
    from torchyard.local.environment import programs_of_shell, with_programs
    from torchyard.local.sweeps import control_sweep
    from torchyard.sweeps.sampler import SamplerError
    from torchyard.sweeps.sampling import MissingLibraryError

    assert options.file is not None
    wanted = with_programs(named(sweep_of(options), name), programs_of_shell())
    template = wanted.spec.job_template
    template = replace(template, spec=on_folders(template.spec))
    wanted = replace(wanted, spec=replace(wanted.spec, job_template=template))
    if volumes := template.spec.volumes:
        say(f"torchyard: {without_folder(volumes)}")
    sweep = prepared(wanted, folder_of(wanted.metadata, options.file.absolute().parent, say), say)
    try:
        with control_sweep(sweep.metadata.name):
            return asyncio.run(_Watching(sweep).until_over(output))
    except (ValueError, SamplerError, MissingLibraryError) as error:
        raise RefusalError(str(error).rstrip(".")) from error
    except OSError as error:
        trouble = f"the sweep {sweep.metadata.name!r} can no longer be controlled: {error}"
        raise RefusalError(trouble, "fix the cause, then run its file again: it continues", FAILED) from error


class _Watching:
    """What is known of a sweep while it is controlled from here."""

    def __init__(self, sweep: TrainingSweep) -> None:
        self.sweep = sweep
        self.jobs: Mapping[int, TrainingJob] = {}
        self.interrupts = Interrupts(self._longest, say)
        self.said: dict[int, State] = {}
        self.begun = False  # of trials that ended before this command nothing is said

    async def until_over(self, output: Format | None) -> int:
        """Control and show the sweep; return the exit code."""
        from torchyard.local.sweep_controller import run_sweep

        asked = self.interrupts
        async with _table_in_place(lambda: table_of(self.sweep, self.jobs)):
            with asked.heard():
                ended = await run_sweep(self.sweep, on_change=self._changed, stop=asked.stop, kill=asked.kill)
        name = self.sweep.metadata.name
        if ended is None:
            saved = "stopped, without a last save" if asked.kill.is_set() else "saved and stopped"
            say(f"sweep {name} is {saved}; `torchyard run` with its file continues it")
            return INTERRUPTED if asked.kill.is_set() else STOPPED
        say(f"sweep {name}: {addressed(ended.message, name)}")
        say(line_of(self.sweep, self.jobs))
        if output is not None:
            from torchyard.cli.commands.sweep import document

            emit(document(self.sweep, self.jobs), output)
        return SUCCEEDED if ended.state == "Succeeded" else FAILED

    def _changed(self, jobs: Mapping[int, TrainingJob]) -> None:
        self.jobs = dict(jobs)
        for number, job in jobs.items():
            # A trial whose parameters make no job is at rest from the start.
            state = State.FAILED if trial_of(job).record.rejected else job.status.state
            before, self.said[number] = self.said.get(number), state
            ended = state.at_rest and (before not in {None, state} or (before is None and self.begun))
            if ended and not is_live():
                say(ended_line(self.sweep, self.jobs, number))
        self.begun = True

    def _longest(self) -> str:
        return str(self.sweep.spec.job_template.spec.grace_period)


def _table_in_place(table: Callable[[], "RenderableType"]) -> contextlib.AbstractAsyncContextManager[None]:
    """Redraw the table of the trials if the terminal can do it; else, print a line for each trial that ends."""
    if not is_live():
        return contextlib.nullcontext()
    from torchyard.cli.output import console
    from torchyard.cli.views.live import LiveView

    return drawn(table, LiveView(console(stderr=True), lambda trials, _width, _height: trials))
