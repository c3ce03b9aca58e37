"""`torchyard wait NAME`."""

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from torchyard.cli.arguments import run_name
from torchyard.cli.errors import FAILED, SUCCEEDED
from torchyard.cli.output import say
from torchyard.cli.remote.place import on_cluster, place

if TYPE_CHECKING:
    from torchyard.api.resource import TrainingJob

    Look = Callable[[], Awaitable[TrainingJob | None]]
    """The job as it is now, None: it is gone."""

GOALS = ("over", "running", "suspended", "succeeded", "deleted")
TIMED_OUT = 124  # as timeout(1)


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""
    run_name(parser)
    place(parser)
    parser.add_argument("--for", dest="goal", choices=GOALS, default="over", help="what to wait for; by default: over")
    parser.add_argument("--timeout", metavar="DURATION", type=duration, help="give up after this time: 90s, 5m, 2h")


def duration(text: str) -> float:
    """Seconds."""
    from torchyard.api.durations import seconds

    try:
        return seconds(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error


def command(name: str, context: str | None, namespace: str | None, goal: str, timeout: float | None) -> int:
    """Wait until a job is over, or got somewhere else.

    Exit codes: 0 it got there, 1 it cannot any more (64: its workload refused its configuration), 75 it is suspended
    instead, 124 the time is up.
    """
    import asyncio

    if not on_cluster(name, context, namespace):
        from torchyard.cli.runs import find, load

        async def on_this_machine() -> "TrainingJob | None":
            folder = find(name)
            return load(folder).job if folder.job_file.exists() else None

        return asyncio.run(_within(timeout, name, on_this_machine, goal))

    from torchyard.cli.remote import jobs
    from torchyard.cli.remote.session import Remote, ask
    from torchyard.cluster.kube.errors import NotFound
    from torchyard.engine.ports import Unavailable

    async def there(remote: Remote) -> int:
        seen: list[TrainingJob] = []

        async def look() -> "TrainingJob | None":
            try:
                seen[:] = [jobs.typed(await jobs.get(remote, name))]
            except NotFound:
                if not seen and goal != "deleted":
                    raise
                return None
            except Unavailable:  # it may be away for a while, but not from the start
                if not seen:
                    raise
            return seen[0]

        return await _within(timeout, name, look, goal)

    return ask(there, context, namespace)


async def _within(timeout: float | None, name: str, look: "Look", goal: str) -> int:  # noqa: ASYNC109 - the user's
    import asyncio

    try:
        async with asyncio.timeout(timeout):
            return await _until(name, look, goal)
    except TimeoutError:
        say(f"{name} did not get there in time")
        return TIMED_OUT


async def _until(name: str, look: "Look", goal: str) -> int:
    import asyncio

    from torchyard.cli.ending import exit_code
    from torchyard.cli.remote.follow import LOOK_SECONDS, is_over

    while True:
        job = await look()
        if job is None:
            if goal != "deleted":
                say(f"{name} was deleted")
            return SUCCEEDED if goal == "deleted" else FAILED
        state = job.status.state
        if state.lower() == goal:
            return SUCCEEDED
        if goal != "deleted" and is_over(job):
            if goal != "over":
                say(f"{name} is {state}: {job.status.message}")
            return exit_code(job) if goal == "over" else exit_code(job) or FAILED
        await asyncio.sleep(LOOK_SECONDS)
