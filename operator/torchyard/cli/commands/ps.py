"""`torchyard ps`: every run or job, a line each."""

import gc
import time
from argparse import ArgumentParser
from typing import Literal

from torchyard.cli import arguments as common
from torchyard.cli.errors import SUCCEEDED
from torchyard.cli.output import emit, say

Form = Literal["json", "yaml", "wide"]


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""
    common.place(parser)
    parser.add_argument("-A", "--all-namespaces", dest="everywhere", action="store_true", help="of the cluster")
    common.output(parser, "json", "yaml", "wide", help="whole objects, or a wider table")


def command(context: str | None, namespace: str | None, everywhere: bool, output: Form | None) -> int:
    """List jobs, newest first: the runs of this machine; where there is none, or when asked to, a cluster's jobs."""
    gc.disable()  # modules that are being imported are no garbage; looking for some takes a twentieth of the time
    from torchyard.api.formatting import plural
    from torchyard.cli.arguments import ask_at
    from torchyard.cli.views.table import COLUMNS, WIDE_COLUMNS, lines, row
    from torchyard.client.backend import HERE, Backend, Kept, Place, Unreadable, is_configured, place_of

    place = Place("cluster", context, namespace) if everywhere else place_of(None, context, namespace)

    async def found(backend: Backend) -> tuple[list[Kept | Unreadable], str]:
        return await backend.jobs(everywhere=everywhere), backend.where

    listed, where = ask_at(place, found)
    jobs = [each for each in listed if isinstance(each, Kept)]
    unreadable = [each for each in listed if isinstance(each, Unreadable)]
    for each in unreadable:
        say(f"torchyard: {each.sentence}")
    if output in {"json", "yaml"}:
        emit([job.document for job in jobs], "json" if output == "json" else "yaml")
        return SUCCEEDED
    if place != HERE:
        where = f"all namespaces of {where.partition(' of ')[2]}" if everywhere else where
        say(f"{where}: {plural(len(jobs), 'job') if jobs else 'no jobs'}")
    elif is_configured():
        say("on this machine; `torchyard ps -A` lists the jobs of the cluster")
    now, wide = time.time(), output == "wide"
    rows = [
        [*([each.job.metadata.namespace] if everywhere else []),
         *row(each.job, each.controlled, now, wide, each.detached)]
        for each in jobs
    ]  # fmt: skip
    rows += [[each.name, "Unreadable"] for each in unreadable]
    columns = WIDE_COLUMNS if wide else COLUMNS
    if rows or place == HERE:
        for line in lines(("NAMESPACE", *columns) if everywhere else columns, rows):
            print(line)
    return SUCCEEDED
