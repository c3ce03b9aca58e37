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
    from torchyard.cli.runs import find, load
    from torchyard.cluster.local.runs import suspend_run

    folder = find(name)
    run = load(folder)
    if run.job.status.state not in {"Succeeded", "Failed"}:
        suspend_run(folder, suspend=True)
        if run.controlled:
            say(f"{name}: saving and stopping")
        while wait and not (run := load(folder)).over:
            time.sleep(POLL_SECONDS)
    state = run.job.status.state
    if state in {"Succeeded", "Failed"}:
        say(f"{name}: it has {'succeeded' if state == 'Succeeded' else 'failed'} already")
        return SUCCEEDED if state == "Succeeded" else FAILED
    if run.over:
        say(f"{name}: stopped; `torchyard resume {name}` goes on")
    return STOPPED
