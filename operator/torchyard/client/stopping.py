"""Saving and stopping a run of this machine."""

import asyncio
import contextlib

from torchyard.api.status import State
from torchyard.client.errors import FAILED, TorchYardError
from torchyard.client.local import Run, find, load
from torchyard.local.controller import run_job
from torchyard.local.run import RunFolder
from torchyard.local.runs import RunBusyError, suspend_run

POLL_SECONDS = 0.1


async def stop_run(name: str, *, wait: bool) -> Run:
    """Ask a run to save and stop; one whose controlling process died is stopped by this process.

    Args:
        name: of the run.
        wait: return only after the job has stopped.

    Raises:
        TorchYardError: it was resumed in between, or cannot be controlled here.
    """
    folder = find(name)
    run = load(folder)
    if settled(run):
        return run
    suspend_run(folder, suspend=True)
    run = load(folder)
    while not settled(run):
        if not run.job.spec.suspend:
            raise TorchYardError(f"the run {name!r} was resumed while it stopped", code=FAILED)
        if not run.controlled:  # its controller died: what it left running is ours to save and stop
            await _stop_here(folder)
        elif wait:
            await asyncio.sleep(POLL_SECONDS)
        else:
            break
        run = load(folder)
    return run


def settled(run: Run) -> bool:
    """Return whether the run is finished, or stopped and not about to be resumed."""
    state = run.job.status.state
    return state.terminal or (state == State.SUSPENDED and run.job.spec.suspend and not run.controlled)


async def _stop_here(folder: RunFolder) -> None:
    from torchyard.client.run_log import log_to_run_folder

    try:
        with log_to_run_folder(folder), contextlib.suppress(RunBusyError):  # another process may have taken it over
            await run_job(folder)
    except ValueError as error:
        raise TorchYardError(str(error).rstrip(".")) from error
