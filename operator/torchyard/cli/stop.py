"""`torchyard stop NAME`."""

import time
from argparse import ArgumentParser

from torchyard.cli import arguments as common
from torchyard.cli.errors import FAILED, STOPPED, SUCCEEDED
from torchyard.cli.output import say

POLL_SECONDS = 0.1


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""
    common.run_name(parser)
    parser.add_argument("--no-wait", dest="wait", action="store_false", help="return at once")


def command(name: str, wait: bool) -> int:
    """Save a run and stop it; `torchyard resume` goes on from there.

    Exit code 75 when it is stopped, 0 when it had succeeded before, 1 when it had failed.
    """
    import asyncio

    from torchyard.cli.runs import find, load
    from torchyard.cluster.local.runs import suspend_run
    from torchyard.laptop import run_job

    folder = find(name)
    run = load(folder)
    if run.job.status.state not in {"Succeeded", "Failed", "Suspended"}:
        say(f"{name}: saving and stopping")
        suspend_run(folder, suspend=True)
        if not run.controlled:  # what its dead controller left running is ours to stop
            asyncio.run(run_job(folder))
        while wait and not (run := load(folder)).over:
            time.sleep(POLL_SECONDS)
    state = run.job.status.state
    if state in {"Succeeded", "Failed"}:
        say(f"{name}: it has already {state.lower()}")
        return SUCCEEDED if state == "Succeeded" else FAILED
    if run.over:
        say(f"{name}: stopped; `torchyard resume {name}` goes on")
    return STOPPED
