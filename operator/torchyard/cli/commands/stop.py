"""`torchyard stop NAME`."""

from argparse import ArgumentParser

from torchyard.api.status import State
from torchyard.cli import arguments as common
from torchyard.cli.errors import FAILED, STOPPED, SUCCEEDED
from torchyard.cli.output import say


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""
    common.run_name(parser)
    parser.add_argument("--no-wait", dest="wait", action="store_false", help="return at once")


def command(name: str, wait: bool) -> int:
    """Save a run and stop it; `torchyard resume` goes on from there.

    Exit code 75 when it is stopped, 0 when it had succeeded before, 1 when it had failed.
    """
    import asyncio

    from torchyard.client.local import find, load
    from torchyard.client.stopping import settled, stop_run

    run = load(find(name))
    if not settled(run):
        say(f"{name}: saving and stopping")
        run = asyncio.run(stop_run(name, wait=wait))
    state = run.job.status.state
    if state.terminal:
        say(f"{name}: it has already {state.lower()}")
        return SUCCEEDED if state == State.SUCCEEDED else FAILED
    if settled(run):
        say(f"{name}: stopped; `torchyard resume {name}` goes on")
    return STOPPED
