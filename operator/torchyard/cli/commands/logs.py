"""`torchyard logs NAME`: the output of all ranks as one stream, the rank that failed first in front."""

import sys
from argparse import ArgumentParser

from torchyard.cli import arguments as common
from torchyard.cli.errors import SUCCEEDED


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""
    common.run_name(parser)
    common.place(parser)
    parser.add_argument("--rank", metavar="R", type=common.natural, help="only this rank")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run ends, through new rounds")
    parser.add_argument("--tail", metavar="N", type=common.natural, help="only the last N lines of each rank")


def command(
    *, name: str, context: str | None, namespace: str | None, rank: int | None, follow: bool, tail: int | None
) -> int:
    """Show the output of a job's ranks, each line after its rank and pod.

    The rank that failed first comes first. On a cluster: of the pods that are still there.
    """
    from torchyard.cli.arguments import ask
    from torchyard.client.backend import Backend

    async def show(backend: Backend) -> int:
        async for line in backend.logs(name, rank=rank, follow=follow, tail=tail):
            sys.stdout.write(f"{line}\n")
            if follow:
                sys.stdout.flush()
        return SUCCEEDED

    return ask(show, name, context, namespace, waits=follow)
