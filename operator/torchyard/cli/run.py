"""`torchyard run FILE`."""

from pathlib import Path
from typing import Annotated, Literal

import typer


def command(
    file: Annotated[Path, typer.Argument(help="Job file (YAML or JSON) with one TrainingJob.", metavar="FILE")],
    name: Annotated[str | None, typer.Option(help="Name of the run; by default the job's.")] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Change a field: --set spec.nodes=2; may be repeated."),
    ] = None,
    output: Annotated[
        Literal["json", "yaml"] | None, typer.Option("--output", "-o", help="Print the final object on stdout.")
    ] = None,
) -> int:
    """Run a job file on this machine and watch it until it is over.

    An unfinished run of that name goes on from its newest checkpoint; a finished one starts over.

    Ctrl-C saves and stops; a second Ctrl-C stops now.

    Exit codes: 0 succeeded, 1 failed, 64 invalid, 75 saved and stopped.
    """
    from torchyard.cli.foreground import start, watch

    return watch(start(file, name, sets or []), output)
