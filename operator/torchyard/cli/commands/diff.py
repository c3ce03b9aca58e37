"""`torchyard diff A B`."""

from argparse import ArgumentParser

from torchyard.cli import arguments as common
from torchyard.cli.errors import SUCCEEDED
from torchyard.cli.output import Format, emit


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("left", metavar=common.RUN_NAME, help="name of a job or run")
    parser.add_argument("right", metavar=common.RUN_NAME, help="name of the one to compare with")
    common.place(parser)
    common.output(parser, "json", "yaml", help="print the differences as an object")


def command(left: str, right: str, context: str | None, namespace: str | None, output: Format | None) -> int:
    """Show in what two runs differ: specification, code, packages, machine, result and final metrics.

    torchyard diff cvrp cvrp-2
    torchyard diff cvrp cvrp-2 -o json

    Code, packages and machine are what the agent of node rank 0 recorded in environment.json of the checkpoint folder.
    Of environment variables, only the names are compared. One name may be of this machine and the other of the cluster.
    """
    import asyncio

    import msgspec

    from torchyard.client.jobs import diff

    found = asyncio.run(diff(left, right, context=context, namespace=namespace))
    if output is not None:
        emit(msgspec.to_builtins(found), output)
    else:
        print(found)
    return SUCCEEDED
