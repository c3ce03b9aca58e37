"""`torchyard events NAME`."""

from typing import Annotated, Literal

import typer

from torchyard.cli.completion import run_names
from torchyard.cli.errors import SUCCEEDED


def command(
    name: Annotated[str, typer.Argument(help="Name of the run.", autocompletion=run_names)],
    output: Annotated[Literal["json"] | None, typer.Option("--output", "-o", help="One JSON object a line.")] = None,
) -> int:
    """Show what happened to a run, oldest first."""
    import msgspec

    from torchyard.cli.runs import find
    from torchyard.cli.words import clean
    from torchyard.cluster.local.run import events

    for event in events(find(name)):
        if output is not None:
            print(msgspec.json.encode(event).decode())
        else:
            print(f"{clean(event.time)}  {clean(event.type):<7}  {clean(event.reason):<20}  {clean(event.message)}")
    return SUCCEEDED
