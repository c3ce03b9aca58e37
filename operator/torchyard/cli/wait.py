"""`torchyard wait NAME`."""

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from torchyard.cli.arguments import run_name
from torchyard.cli.errors import FAILED, SUCCEEDED, RefusalError
from torchyard.cli.output import say
from torchyard.cli.remote.place import on_cluster, place

if TYPE_CHECKING:
    from torchyard.api.resource import TrainingJob
    from torchyard.cli.remote.watch import Away

    States = AsyncIterator[TrainingJob | Away | None]
    """The job each time that it changed, None: it is gone."""

GOALS = ("over", "running", "suspended", "succeeded", "deleted")
TIMED_OUT = 124  # as timeout(1)
ABANDONED_LOOKS = 3
"""So often in a row a run must be seen without a controlling process: one that starts has none yet."""


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""
    run_name(parser)
    place(parser)
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

    if not on_cluster(name, context, namespace):
        return asyncio.run(_within(timeout, name, _on_this_machine(name, goal), goal))

    from torchyard.cli.remote.session import Remote, ask

    async def there(remote: Remote) -> int:
        from torchyard.cli.remote.watch import states

        return await _within(timeout, name, states(remote, name), goal)

    return ask(there, context, namespace)


async def _on_this_machine(name: str, goal: str) -> "States":
    """Yield a run of this machine every second; None once it is gone or another run has its name.

    Raises:
        RefusalError: nothing controls the run, so that its state does not change, except by its deletion.
    """
    import asyncio

    from torchyard.cli.picture import interrupted
    from torchyard.cli.remote.follow import LOOK_SECONDS
    from torchyard.cli.runs import find, load, named

    folder = named(name) if goal == "deleted" else find(name)
    uid, abandoned = None, 0
    while True:
        run = load(folder) if folder.job_file.exists() else None
        uid = run.job.metadata.uid if run is not None and uid is None else uid
        if run is None or run.job.metadata.uid != uid:
            yield None
            return
        yield run.job
        abandoned = abandoned + 1 if interrupted(run.job, run.controlled) and goal != "deleted" else 0
        if abandoned == ABANDONED_LOOKS:
            raise _abandoned(name, detached=run.detached)
        await asyncio.sleep(LOOK_SECONDS)


def _abandoned(name: str, *, detached: bool) -> RefusalError:
    if detached:
        what = (
            f"the run {name!r} is still training, but no process follows it (Detached), so that its end is not noticed"
        )
        return RefusalError(what, f"`torchyard resume {name}` reattaches", FAILED)
    what = f"the run {name!r} is interrupted: the process that controlled it is gone"
    return RefusalError(what, f"`torchyard resume {name}` continues it", FAILED)


async def _within(timeout: float | None, name: str, states: "States", goal: str) -> int:  # noqa: ASYNC109 - the user's
    import asyncio

    try:
        async with asyncio.timeout(timeout):
            return await _until(name, states, goal)
    except TimeoutError:
        say(f"{name} did not get there in time")
        return TIMED_OUT


async def _until(name: str, states: "States", goal: str) -> int:
    from torchyard.api.resource import TrainingJob
    from torchyard.cli.ending import exit_code
    from torchyard.cli.remote.jobs import is_over

    if goal == "deleted":
        states = _gone_already(states)
    async for job in states:
        if job is None:
            break
        if not isinstance(job, TrainingJob):
            continue  # the API server may be away for a while
        state = job.status.state
        if state.lower() == goal:
            return SUCCEEDED
        if goal != "deleted" and is_over(job):
            if goal != "over":
                say(f"{name} is {state}: {job.status.message}")
            return exit_code(job) if goal == "over" else exit_code(job) or FAILED
    if goal != "deleted":
        say(f"{name} was deleted before it was over")
    return SUCCEEDED if goal == "deleted" else FAILED


async def _gone_already(states: "States") -> "States":
    """Yield the same states; None for a job that does not exist, since it may have been deleted a moment ago."""
    from torchyard.cluster.kube.errors import NotFound

    try:
        async for job in states:
            yield job
    except NotFound:
        yield None
