"""`torchyard events NAME`."""

from argparse import ArgumentParser
from typing import Literal

from torchyard.cli import arguments as common
from torchyard.cli.errors import SUCCEEDED
from torchyard.cli.output import emit


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""
    common.run_name(parser)
    common.place(parser)
    common.output(parser, "json", "yaml", help="json: one object a line; yaml: a list")


def command(name: str, context: str | None, namespace: str | None, output: Literal["json", "yaml"] | None) -> int:
    """Show what happened to a job, oldest first."""
    import msgspec

    from torchyard.api.formatting import clean
    from torchyard.cli.arguments import ask
    from torchyard.cli.output import escaped

    found = ask(lambda backend: backend.events(name), name, context, namespace)
    if output == "yaml":
        emit([msgspec.to_builtins(event) for event in found], output)
        return SUCCEEDED
    for event in found:
        if output is not None:
            print(escaped(msgspec.json.encode(event).decode()))
        else:
            print(f"{clean(event.time)}  {clean(event.type):<7}  {clean(event.reason):<20}  {clean(event.message)}")
    return SUCCEEDED
