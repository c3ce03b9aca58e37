"""`torchyard stacks NAME`: where each rank of a running job stands, also one that hangs."""

from argparse import ArgumentParser
from typing import Literal

import msgspec

from torchyard.cli import arguments as common
from torchyard.cli.errors import FAILED, SUCCEEDED, RefusalError
from torchyard.cli.output import emit
from torchyard.client.rank_stacks import shown


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""
    common.run_name(parser)
    parser.add_argument("--rank", metavar="R", type=common.natural, help="only this rank")
    common.place(parser)
    common.output(parser, "json", "yaml", help="a list with an object a rank")


def command(
    *,
    name: str,
    rank: int | None,
    context: str | None,
    namespace: str | None,
    output: Literal["json", "yaml"] | None,
) -> int:
    """Show the stacks of all threads of each rank of a running job; training goes on.

    Python's own fault handler writes them, also while a rank hangs in a collective, a driver or a file system.
    """
    from torchyard.cli.arguments import ask

    found = ask(lambda backend: backend.stacks(name), name, context, namespace)
    chosen = [each for each in sorted(found, key=lambda each: each.rank) if rank is None or each.rank == rank]
    if not chosen:
        who = "no rank of it runs now" if rank is None else f"rank {rank} does not run now"
        raise RefusalError(f"{name!r}: {who}", f"`torchyard status {name}` tells how it is", FAILED)
    if output is not None:
        emit([msgspec.to_builtins(each) for each in chosen], output)
    else:
        print("\n\n".join(map(shown, chosen)))
    return SUCCEEDED
