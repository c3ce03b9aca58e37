"""`torchyard rm NAME...`."""

from argparse import ArgumentParser

from torchyard.cli import arguments as common
from torchyard.cli.errors import SUCCEEDED, RefusalError


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("names", metavar=common.RUN_NAME, nargs="+", help="names of runs")
    parser.add_argument("--force", action="store_true", help="end a run that is still going on, unsaved")


def command(names: list[str], force: bool) -> int:
    """Delete runs with their logs and checkpoints."""
    from torchyard.cli.output import say
    from torchyard.client.local import find, load

    runs = [load(find(name)) for name in names]
    for run in runs:
        if not run.over and not force:
            name = run.folder.name
            raise RefusalError(f"the run {name!r} is going on", f"`torchyard stop {name}` first, or use --force")
    from torchyard.local.runs import remove_run

    for run in runs:
        try:
            remove_run(run.folder)
        except ValueError as error:
            raise RefusalError(str(error).rstrip(".")) from error
        say(f"{run.folder.name}: deleted")
    return SUCCEEDED
