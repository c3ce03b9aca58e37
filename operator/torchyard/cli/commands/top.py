"""Show jobs live in the terminal: `torchyard top`."""

import sys
from argparse import ArgumentParser

from torchyard.cli import arguments as common
from torchyard.cli.errors import FAILED, SUCCEEDED, RefusalError


def top_arguments(parser: ArgumentParser) -> None:
    """Declare the command line of `top`."""
    parser.add_argument("-A", "--all-namespaces", dest="everywhere", action="store_true", help="jobs of all namespaces")
    common.location_options(parser)


def top(*, everywhere: bool, context: str | None, namespace: str | None) -> int:
    """Carry out `torchyard top`.

    Shows the runs of this machine; if there are none, or with -n, --context or -A, the jobs of a cluster.

    Enter opens a job with its curves (arrow keys choose the metric), l shows its output, t the stacks of its ranks, s
    saves and stops or suspends it, r resumes it, d deletes it, / filters the list, Escape goes back, q ends.

    Needs `pip install 'torchyard[top]'`.
    """
    from torchyard.cli.top.app import Top
    from torchyard.cli.top.source import Source
    from torchyard.client.location import Location, location_of

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise RefusalError("this needs a terminal", "`torchyard ps` prints the list", FAILED)
    location = Location("cluster", context, namespace) if everywhere else location_of(None, context, namespace)
    Top(Source(location, everywhere=everywhere)).run()
    return SUCCEEDED
