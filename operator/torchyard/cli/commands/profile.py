"""`torchyard profile NAME trace|memory`."""

from argparse import ArgumentParser
from typing import Literal

from torchyard.api.formatting import plural
from torchyard.cli import arguments as common
from torchyard.cli.errors import SUCCEEDED
from torchyard.client.backend import place_flags
from torchyard.client.profile_request import wish_for


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""
    common.run_name(parser)
    parser.add_argument(
        "kind", choices=("trace", "memory"), help="a Chrome trace of some steps, or which tensors there are"
    )
    parser.add_argument("--steps", metavar="N", type=common.natural, default=3, help="steps to record (3)")
    parser.add_argument("--rank", metavar="R", type=common.natural, help="only this rank; by default every rank")
    parser.add_argument("--replace", action="store_true", help="give up an earlier wish that is not granted yet")
    common.place(parser)


def command(
    *,
    name: str,
    kind: Literal["trace", "memory"],
    steps: int,
    rank: int | None,
    replace: bool,
    context: str | None,
    namespace: str | None,
) -> int:
    """Ask the ranks of a running job of a built-in workload for a profile; training goes on.

    Each writes it into `profile/` of the checkpoint folder, from where `torchyard fetch NAME profile` brings it. One
    wish at a time: while an earlier one is not granted, another is rejected unless --replace is given.
    """
    from torchyard.cli.arguments import ask

    wish = wish_for(kind, steps, rank)
    asked = ask(lambda backend: backend.profile(name, wish, replace=replace), name, context, namespace)
    fetch = f"torchyard fetch {name} profile{place_flags(context, namespace)}"
    pods = plural(asked, "pod")
    print(f"asked {pods} of {name} for {kind}; `{fetch}` brings it when the steps are made")
    return SUCCEEDED
