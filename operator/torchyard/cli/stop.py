"""`torchyard stop NAME`."""

import time
from argparse import ArgumentParser
from typing import TYPE_CHECKING

from torchyard.api.states import State
from torchyard.cli import arguments as common
from torchyard.cli.errors import FAILED, STOPPED, SUCCEEDED, RefusalError
from torchyard.cli.output import say

if TYPE_CHECKING:
    from torchyard.cli.runs import Run
    from torchyard.cluster.local.folder import RunFolder

POLL_SECONDS = 0.1


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""
    common.run_name(parser)
    parser.add_argument("--no-wait", dest="wait", action="store_false", help="return at once")


def command(name: str, wait: bool) -> int:
    """Save a run and stop it; `torchyard resume` goes on from there.

    Exit code 75 when it is stopped, 0 when it had succeeded before, 1 when it had failed.
    """
    from torchyard.cli.runs import find, load
    from torchyard.cluster.local.runs import suspend_run

    folder = find(name)
    run = load(folder)
    if not _settled(run):
        say(f"{name}: saving and stopping")
        suspend_run(folder, suspend=True)
        run = load(folder)
        while not _settled(run):
            if not run.job.spec.suspend:
                raise RefusalError(f"the run {name!r} was resumed while it stopped", code=FAILED)
            if not run.controlled:  # its controller died: what it left running is ours to save and stop
                _stop_here(folder)
            elif wait:
                time.sleep(POLL_SECONDS)
            else:
                return STOPPED
            run = load(folder)
    state = run.job.status.state
    if state.terminal:
        say(f"{name}: it has already {state.lower()}")
        return SUCCEEDED if state == State.SUCCEEDED else FAILED
    say(f"{name}: stopped; `torchyard resume {name}` goes on")
    return STOPPED


def _settled(run: "Run") -> bool:
    """Whether the run is finished, or stopped and not about to be resumed."""
    state = run.job.status.state
    return state.terminal or (state == State.SUSPENDED and run.job.spec.suspend and not run.controlled)


def _stop_here(folder: "RunFolder") -> None:
    import asyncio

    from torchyard.cli.journal import journal
    from torchyard.cluster.local.runs import RunBusyError
    from torchyard.laptop import run_job

    try:
        with journal(folder):
            asyncio.run(run_job(folder))
    except RunBusyError:  # somebody else has taken it over
        return
    except ValueError as error:
        raise RefusalError(str(error).rstrip(".")) from error
