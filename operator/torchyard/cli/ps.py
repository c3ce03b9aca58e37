"""`torchyard ps`: every run or job, a line each."""

import gc
import time
from argparse import ArgumentParser
from typing import Literal

from torchyard.cli import arguments as common
from torchyard.cli.errors import SUCCEEDED, RefusalError
from torchyard.cli.output import emit, say
from torchyard.cli.remote.place import is_configured, on_cluster, place

Form = Literal["json", "yaml", "wide"]


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""
    place(parser)
    parser.add_argument("-A", "--all-namespaces", dest="everywhere", action="store_true", help="of the cluster")
    common.output(parser, "json", "yaml", "wide", help="whole objects, or a wider table")


def command(context: str | None, namespace: str | None, everywhere: bool, output: Form | None) -> int:
    """List jobs, newest first: the runs of this machine; where there is none, or when asked to, a cluster's jobs."""
    if everywhere or on_cluster(None, context, namespace):
        from torchyard.cli.remote import listing
        from torchyard.cli.remote.session import ask

        return ask(lambda remote: listing.show(remote, everywhere=everywhere, output=output), context, namespace)
    return _of_this_machine(output)


def _of_this_machine(output: Form | None) -> int:
    gc.disable()  # modules that are being imported are no garbage; looking for some takes a twentieth of the time
    from torchyard.cli.runs import Run, load
    from torchyard.cli.status import document
    from torchyard.cli.table import COLUMNS, WIDE_COLUMNS, lines, row
    from torchyard.cluster.local.runs import expire_run, list_runs

    runs: list[Run] = []
    unreadable: list[list[str]] = []
    for folder in list_runs():
        try:
            run = load(folder)
        except RefusalError as refusal:
            say(f"torchyard: {refusal.sentence}; {refusal.fix}")
            unreadable.append([folder.name, "Unreadable"])
        else:
            if not expire_run(folder, run.job):
                runs.append(run)
    runs.sort(key=lambda run: run.job.metadata.creation_timestamp or 0.0, reverse=True)
    if output in {"json", "yaml"}:
        emit([document(run) for run in runs], "json" if output == "json" else "yaml")
        return SUCCEEDED
    if is_configured():
        say("on this machine; `torchyard ps -A` lists the jobs of the cluster")
    now, wide = time.time(), output == "wide"
    rows = [row(run.job, run.controlled, now, wide, run.detached) for run in runs] + unreadable
    for line in lines(WIDE_COLUMNS if wide else COLUMNS, rows):
        print(line)
    return SUCCEEDED
