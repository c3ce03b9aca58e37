"""`torchyard events NAME`."""

from argparse import ArgumentParser
from typing import Literal

from torchyard.cli import arguments as common
from torchyard.cli.errors import SUCCEEDED


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""
    common.run_name(parser)
    common.output(parser, "json", help="one JSON object a line")


def command(name: str, output: Literal["json"] | None) -> int:
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
