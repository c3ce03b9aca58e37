"""`torchyard rm NAME...`."""

from typing import Annotated

import typer

from torchyard.cli.completion import run_names
from torchyard.cli.errors import SUCCEEDED, RefusalError


def command(
    names: Annotated[list[str], typer.Argument(help="Names of runs.", metavar="NAME...", autocompletion=run_names)],
    force: Annotated[bool, typer.Option("--force", help="End a run that is still going on, unsaved.")] = False,
) -> int:
    """Delete runs with their logs and checkpoints."""
    from torchyard.cli.output import say
    from torchyard.cli.runs import find, load
    from torchyard.laptop import remove_run

    runs = [load(find(name)) for name in names]
    for run in runs:
        if not run.over and not force:
            name = run.folder.name
            raise RefusalError(f"the run {name!r} is going on", f"`torchyard stop {name}` first, or use --force")
    for run in runs:
        try:
            remove_run(run.folder)
        except ValueError as error:
            raise RefusalError(str(error).rstrip(".")) from error
        say(f"{run.folder.name}: deleted")
    return SUCCEEDED
