"""`torchyard status NAME`."""

import sys
import time
from argparse import ArgumentParser

from torchyard.cli import arguments as common
from torchyard.cli.errors import SUCCEEDED
from torchyard.cli.output import Format, emit


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""
    common.run_name(parser)
    common.place(parser)
    common.output(parser, "json", "yaml", help="print the whole object instead")


def command(name: str, context: str | None, namespace: str | None, output: Format | None) -> int:
    """Show what a job is doing and why: progress, checkpoint, rounds, first cause, pods or files."""
    from torchyard.cli.arguments import ask

    if output is not None:
        emit(ask(lambda backend: backend.get(name), name, context, namespace).document, output)
        return SUCCEEDED
    from torchyard.cli.output import console
    from torchyard.cli.views.show import render
    from torchyard.client.backend import place_flags

    kept, inside = ask(lambda backend: backend.inspect(name), name, context, namespace)
    terminal = console(highlight=False, width=None if sys.stdout.isatty() else 200)
    terminal.print(render(kept, inside, time.time(), place_flags(context, namespace)))
    return SUCCEEDED
