"""`torchyard status NAME`."""

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from torchyard.cli.completion import run_names
from torchyard.cli.errors import SUCCEEDED
from torchyard.cli.output import emit

if TYPE_CHECKING:
    from torchyard.cli.runs import Run


def command(
    name: Annotated[str, typer.Argument(help="Name of the run.", autocompletion=run_names)],
    output: Annotated[
        Literal["json", "yaml"] | None, typer.Option("--output", "-o", help="Print the whole object instead.")
    ] = None,
) -> int:
    """Show what a run is doing and why: progress, checkpoint, rounds, first cause, where its files are."""
    from torchyard.cli.runs import find, load

    run = load(find(name))
    if output is not None:
        emit(document(run), output)
        return SUCCEEDED
    from rich.console import Console

    from torchyard.cli import show
    from torchyard.cli.ranks import freshen, ranks_of, read_reports

    reports = read_reports(run.folder.pods, run.job.status.round) if run.controlled else []
    job = freshen(run.job, reports)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    console.print(show.render(job, run.folder.path, run.controlled, ranks_of(reports), time.time()))
    return SUCCEEDED


def document(run: "Run") -> dict[str, Any]:
    """The whole object, as `-o json` prints it."""
    from torchyard.api.codec import job_document

    return job_document(run.job)
