"""`torchyard status NAME`."""

import sys
import time
from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

from torchyard.cli import arguments as common
from torchyard.cli.errors import SUCCEEDED
from torchyard.cli.output import Format, emit
from torchyard.cli.remote.place import on_cluster, place

if TYPE_CHECKING:
    from torchyard.cli.runs import Run


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""
    common.run_name(parser)
    place(parser)
    common.output(parser, "json", "yaml", help="print the whole object instead")


def command(name: str, context: str | None, namespace: str | None, output: Format | None) -> int:
    """Show what a job is doing and why: progress, checkpoint, rounds, first cause, pods or files."""
    if on_cluster(name, context, namespace):
        return _of_cluster(name, context, namespace, output)
    from torchyard.cli.runs import find, load

    run = load(find(name))
    if output is not None:
        emit(document(run), output)
        return SUCCEEDED
    from torchyard.cli import show
    from torchyard.cli.output import console
    from torchyard.cli.ranks import freshen, ranks_of, read_reports
    from torchyard.cli.runs import living_processes
    from torchyard.cluster.local.runs import is_controlled

    going_on = run.controlled or run.detached
    reports = read_reports(run.folder.pods, run.job.status.round) if going_on else []
    fresh = run._replace(job=freshen(run.job, reports))
    processes = show.Processes(is_controlled(run.folder), living_processes(run.folder.pods) if going_on else [])
    terminal = console(highlight=False, width=None if sys.stdout.isatty() else 200)
    terminal.print(show.render(fresh, processes, ranks_of(reports), time.time()))
    return SUCCEEDED


def _of_cluster(name: str, context: str | None, namespace: str | None, output: Format | None) -> int:
    from torchyard.cli.remote import jobs, show
    from torchyard.cli.remote.session import Remote, ask

    async def status(remote: Remote) -> int:
        kept = await jobs.get(remote, name)
        if output is not None:
            emit(kept, output)
            return SUCCEEDED
        from torchyard.cli.output import console

        job = jobs.typed(kept)
        terminal = console(highlight=False, width=None if sys.stdout.isatty() else 200)
        terminal.print(show.status(job, await jobs.pods(remote, job), remote, time.time()))
        return SUCCEEDED

    return ask(status, context, namespace)


def document(run: "Run") -> dict[str, Any]:
    """The whole object, as `-o json` prints it."""
    from torchyard.api.codec import job_document

    return job_document(run.job)
