"""`torchyard wait NAME`."""

from argparse import ArgumentParser, ArgumentTypeError
from typing import TYPE_CHECKING

from torchyard.cli import arguments as common
from torchyard.cli.errors import FAILED, SUCCEEDED
from torchyard.cli.output import say

if TYPE_CHECKING:
    from torchyard.client.backend import Backend

GOALS = ("over", "running", "suspended", "succeeded", "deleted")
TIMED_OUT = 124  # as timeout(1)


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""
    common.run_name(parser)
    common.place(parser)
    parser.add_argument("--for", dest="goal", choices=GOALS, default="over", help="what to wait for; by default: over")
    parser.add_argument("--timeout", metavar="DURATION", type=duration, help="give up after this time: 90s, 5m, 2h")


def duration(text: str) -> float:
    """Seconds."""
    from torchyard.api.values import Duration

    try:
        return Duration(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error


def command(name: str, context: str | None, namespace: str | None, goal: str, timeout: float | None) -> int:
    """Wait until a job is over, or got somewhere else.

    Exit codes: 0 it got there, 1 it cannot any more, or not by itself (64: its workload refused its configuration), 75
    it is suspended instead, 124 the time is up.
    """
    import asyncio

    from torchyard.cli.arguments import ask

    async def reached(backend: "Backend") -> int:
        try:
            async with asyncio.timeout(timeout):
                return await (_deleted(backend, name) if goal == "deleted" else _reached(backend, name, goal))
        except TimeoutError:
            say(f"{name} did not get there in time")
            return TIMED_OUT

    return ask(reached, name, context, namespace, waits=True)


async def _reached(backend: "Backend", name: str, goal: str) -> int:
    from torchyard.cli.views.outcome import exit_code
    from torchyard.client.backend import Away, is_over

    async for job in backend.states(name):
        if job is None:
            break
        if isinstance(job, Away):
            continue  # the API server may be away for a while
        state = job.status.state
        if state.lower() == goal:
            return SUCCEEDED
        if is_over(job):
            if goal != "over":
                say(f"{name} is {state}: {job.status.message}")
            return exit_code(job) if goal == "over" else exit_code(job) or FAILED
    say(f"{name} was deleted before it was over")
    return FAILED


async def _deleted(backend: "Backend", name: str) -> int:
    from torchyard.client.errors import NotFoundError

    try:
        async for job in backend.states(name, until_deleted=True):
            if job is None:
                break
    except NotFoundError:
        pass  # it may have been deleted a moment ago
    return SUCCEEDED
