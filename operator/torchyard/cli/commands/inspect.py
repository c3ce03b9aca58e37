"""Look at jobs: `torchyard ps`, `status|explain|events|logs|wait NAME`, `diff A B`."""

import gc
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError
from typing import TYPE_CHECKING, Literal

from torchyard.cli import arguments as common
from torchyard.cli.errors import FAILED, SUCCEEDED
from torchyard.cli.output import Format, emit, json_line, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchyard.client.backend import Backend, Kept, Unreadable
    from torchyard.client.job_details import JobDetails
    from torchyard.client.summaries import Summary


Form = Literal["json", "yaml", "wide"]


def ps_arguments(parser: ArgumentParser) -> None:
    """Declare the command line of `ps`."""
    common.location_options(parser)
    parser.add_argument(
        "-A",
        "--all-namespaces",
        dest="everywhere",
        action="store_true",
        help="list the jobs of all namespaces of the cluster",
    )
    common.output(parser, "json", "yaml", "wide", help="print whole objects, or a wider table")


def ps(context: str | None, namespace: str | None, everywhere: bool, output: Form | None) -> int:
    """Carry out `torchyard ps`.

    Lists the runs of this machine; if there are none, or with -n or --context, the jobs of a cluster.
    """
    gc.disable()  # modules that are being imported are no garbage; looking for some takes a twentieth of the time
    from torchyard.api.values import plural
    from torchyard.cli.arguments import ask_at
    from torchyard.cli.views.table import COLUMNS, WIDE_COLUMNS, lines, row
    from torchyard.client.backend import Backend, Kept, Unreadable
    from torchyard.client.location import HERE, Location, is_configured, location_of

    location = Location("cluster", context, namespace) if everywhere else location_of(None, context, namespace)

    if output in {"json", "yaml"}:
        listed = ask_at(location, lambda backend: backend.jobs(everywhere=everywhere))
        _name_unreadable(listed)
        jobs = [each.document for each in listed if isinstance(each, Kept)]
        emit(jobs, "json" if output == "json" else "yaml")
        return SUCCEEDED

    async def found(backend: Backend) -> "tuple[list[Summary | Unreadable], str]":
        where = f"all namespaces of {backend.cluster}" if everywhere else backend.where
        return await backend.summaries(everywhere=everywhere), where

    summaries, where = ask_at(location, found)
    _name_unreadable(summaries)
    if location != HERE:
        say(f"{where}: {plural(len(summaries), 'job') if summaries else 'no jobs'}")
    elif is_configured():
        say("on this machine; `torchyard ps -A` lists the jobs of the cluster")
    now, wide = time.time(), output == "wide"
    rows = [
        [each.name, "Unreadable"]
        if isinstance(each, Unreadable)
        else [*([each.namespace] if everywhere else []), *row(each, now, wide)]
        for each in summaries
    ]
    columns = WIDE_COLUMNS if wide else COLUMNS
    if rows or location == HERE:
        for line in lines(("NAMESPACE", *columns) if everywhere else columns, rows):
            print(line)
    if location == HERE:
        _name_runs_on_hosts()
    return SUCCEEDED


def _name_runs_on_hosts() -> None:
    from torchyard.client.location import has_runs_on_hosts

    if has_runs_on_hosts():
        from torchyard.client.hosts.records import all_recorded

        found = [f"{run.name} ({', '.join(member.host for member in run.members)})" for run in all_recorded()]
        say(f"on hosts: {', '.join(found)}; `torchyard status NAME` asks there")


def _name_unreadable(listed: "Sequence[Kept | Summary | Unreadable]") -> None:
    from torchyard.client.backend import Unreadable

    for each in listed:
        if isinstance(each, Unreadable):
            say(f"torchyard: {each.sentence}")


def status_arguments(parser: ArgumentParser) -> None:
    """Declare the command line of `status`."""
    common.run_name(parser)
    common.location_options(parser)
    common.output(parser, "json", "yaml", help="print the whole object instead")


def status(name: str, context: str | None, namespace: str | None, output: Format | None) -> int:
    """Carry out `torchyard status`.

    Shows progress, checkpoint, rounds, the first cause of a failure, and pods or files.
    """
    from torchyard.cli.arguments import ask

    if output is not None:
        emit(ask(lambda backend: backend.get(name), name, context, namespace).document, output)
        return SUCCEEDED
    from torchyard.cli.output import console
    from torchyard.cli.views.show import render

    async def inspected(backend: "Backend") -> tuple["Kept", "JobDetails", str]:
        return *await backend.inspect(name), backend.flags

    kept, details, flags = ask(inspected, name, context, namespace)
    terminal = console(highlight=False, width=None if sys.stdout.isatty() else 200)
    terminal.print(render(kept, details, time.time(), flags))
    return SUCCEEDED


def explain_arguments(parser: ArgumentParser) -> None:
    """Declare the command line of `explain`."""
    common.run_name(parser)
    common.location_options(parser)
    common.output(parser, "json", "yaml", help="print the explanation as an object")


def explain(name: str, context: str | None, namespace: str | None, output: Format | None) -> int:
    """Carry out `torchyard explain`.

    Prints the state in one sentence, what to do, pods, failures and events. Describes a reason code, such as
    InsufficientGPU, if one is given in place of a name.
    """
    if name[:1].isupper():
        from torchyard.api.reasons import Reason
        from torchyard.cli.errors import RefusalError

        known = Reason.of(name)
        if known is None:
            raise RefusalError(f"there is no reason {name!r}", "the reason of a job is in `torchyard ps -o wide`")
        if output is not None:
            emit({"reason": name, "sentence": known.sentence, "nextStep": known.next_step}, output)
        else:
            print(f"{name}: {known.sentence}" + (f"; {known.next_step}" if known.next_step else ""))
        return SUCCEEDED
    import msgspec

    from torchyard.cli.arguments import ask

    found = ask(lambda backend: backend.explain(name), name, context, namespace)
    if output is not None:
        emit(msgspec.to_builtins(found), output)
    else:
        print(found)
    return SUCCEEDED


def events_arguments(parser: ArgumentParser) -> None:
    """Declare the command line of `events`."""
    common.run_name(parser)
    common.location_options(parser)
    common.output(parser, "json", "yaml", help="json: print one object per line; yaml: print a list")


def events(name: str, context: str | None, namespace: str | None, output: Literal["json", "yaml"] | None) -> int:
    """Carry out `torchyard events`."""
    import msgspec

    from torchyard.api.formatting import clean
    from torchyard.cli.arguments import ask

    found = ask(lambda backend: backend.events(name), name, context, namespace)
    if output == "yaml":
        emit([msgspec.to_builtins(event) for event in found], output)
        return SUCCEEDED
    for event in found:
        if output is not None:
            print(json_line(event))
        else:
            print(f"{clean(event.time)}  {clean(event.type):<7}  {clean(event.reason):<20}  {clean(event.message)}")
    return SUCCEEDED


def logs_arguments(parser: ArgumentParser) -> None:
    """Declare the command line of `logs`."""
    common.run_name(parser)
    common.location_options(parser)
    parser.add_argument("--rank", metavar="R", type=common.natural, help="only this rank")
    parser.add_argument(
        "-f", "--follow", action="store_true", help="follow the output until the run ends, through new rounds"
    )
    parser.add_argument("--tail", metavar="N", type=common.natural, help="show only the last N lines of each rank")
    parser.add_argument(
        "--round", dest="round_number", metavar="N", type=common.natural, help="what is kept of failed round N"
    )
    common.output(parser, "json", help="print one JSON object per line: rank, pod, text, time, agent")


def logs(
    *,
    name: str,
    context: str | None,
    namespace: str | None,
    rank: int | None,
    follow: bool,
    tail: int | None,
    round_number: int | None,
    output: Literal["json"] | None,
) -> int:
    """Carry out `torchyard logs`.

    Each line begins with its rank and pod. The rank that failed first comes first. On a cluster, only pods that still
    exist have logs; --round shows what a failed round has left beside the checkpoints, or in the status.
    """
    from torchyard.cli.arguments import ask
    from torchyard.client.backend import Backend
    from torchyard.client.errors import TorchYardError

    async def show(backend: Backend) -> int:
        if round_number is not None and follow:
            raise TorchYardError("--follow shows what comes, and --round what is over", "leave one of them out")
        async for line in backend.logs(name, rank=rank, follow=follow, tail=tail, round_number=round_number):
            sys.stdout.write(f"{line if output is None else json_line(line)}\n")
            if follow:
                sys.stdout.flush()
        return SUCCEEDED

    return ask(show, name, context, namespace, waits=follow)


GOALS = ("over", "running", "suspended", "succeeded", "deleted")
TIMED_OUT = 124  # as timeout(1)


def wait_arguments(parser: ArgumentParser) -> None:
    """Declare the command line of `wait`."""
    common.run_name(parser)
    common.location_options(parser)
    parser.add_argument("--for", dest="goal", choices=GOALS, default="over", help="what to wait for; by default: over")
    parser.add_argument("--timeout", metavar="DURATION", type=duration, help="longest time to wait: 90s, 5m, 2h")
    common.output(parser, "json", "yaml", help="print the object at the end of the wait, if it still exists")


def duration(text: str) -> float:
    """Parse a duration; return its seconds."""
    from torchyard.api.values import Duration

    try:
        return Duration(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error


def wait(
    *,
    name: str,
    context: str | None,
    namespace: str | None,
    goal: str,
    timeout: float | None,
    output: Format | None,
) -> int:
    """Carry out `torchyard wait`.

    Exit codes: 0 the job reached the state, 1 it cannot reach it, or not without help (64: its workload rejected its
    configuration), 75 it is suspended instead, 124 the timeout has expired.
    """
    import asyncio
    import contextlib

    from torchyard.cli.arguments import ask
    from torchyard.client.errors import NotFoundError

    async def reached(backend: "Backend") -> int:
        try:
            async with asyncio.timeout(timeout):
                code = await (_deleted(backend, name) if goal == "deleted" else _reached(backend, name, goal))
        except TimeoutError:
            say(f"{name} did not reach the state in time")
            code = TIMED_OUT
        if output is not None:
            with contextlib.suppress(NotFoundError):
                emit((await backend.get(name)).document, output)
        return code

    return ask(reached, name, context, namespace, waits=True)


async def _reached(backend: "Backend", name: str, goal: str) -> int:
    from torchyard.cli.views.outcome import exit_code
    from torchyard.client.backend import Away

    async for job in backend.states(name):
        if job is None:
            break
        if isinstance(job, Away):
            continue  # the API server may be away for a while
        state = job.status.state
        if state.lower() == goal:
            return SUCCEEDED
        if job.is_over:
            if goal != "over":
                say(f"{name} is {state}: {job.status.message}")
            return exit_code(job) if goal == "over" else exit_code(job) or FAILED
    say(f"{name} was deleted before it ended")
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


def diff_arguments(parser: ArgumentParser) -> None:
    """Declare the command line of `diff`."""
    parser.add_argument("left", metavar=common.RUN_NAME, help="name of a job or run")
    parser.add_argument("right", metavar=common.RUN_NAME, help="name of the one to compare with")
    common.location_options(parser)
    common.output(parser, "json", "yaml", help="print the differences as an object")


def diff(left: str, right: str, context: str | None, namespace: str | None, output: Format | None) -> int:
    """Carry out `torchyard diff`.

    Compares specification, code, packages, machine, result and final metrics.

    torchyard diff cvrp cvrp-2
    torchyard diff cvrp cvrp-2 -o json

    Code, packages and machine are what the agent of node rank 0 recorded in environment.json of the checkpoint folder.
    Of environment variables, only the names are compared. One name may be of this machine and the other of the cluster.
    """
    import asyncio

    import msgspec

    from torchyard.client.jobs import diff

    found = asyncio.run(diff(left, right, context=context, namespace=namespace))
    if output is not None:
        emit(msgspec.to_builtins(found), output)
    else:
        print(found)
    return SUCCEEDED
