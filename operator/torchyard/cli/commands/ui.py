"""Open the page: `torchyard ui`."""

from argparse import ArgumentParser

from torchyard.cli import arguments as common
from torchyard.cli.errors import SUCCEEDED, RefusalError

PORT = 7878
MAX_PORT = 65535


def ui_arguments(parser: ArgumentParser) -> None:
    """Declare the command line of `ui`."""
    parser.add_argument(
        "--port", type=common.counted, metavar="PORT", help=f"port on 127.0.0.1; by default {PORT}, or another free one"
    )
    parser.add_argument("--no-browser", action="store_true", help="print the link, and open no browser")
    common.location_options(parser)


def ui(*, port: int | None, no_browser: bool, context: str | None, namespace: str | None) -> int:
    """Carry out `torchyard ui`.

    Shows the runs of this machine and the jobs of the clusters of your kubeconfig live in a browser, until Ctrl-C. The
    page has your own rights and reaches no other server. Its link works once; each use prints another one.
    """
    if port is not None and port > MAX_PORT:
        raise RefusalError(f"--port {port} is not a port", f"give one from 1 to {MAX_PORT}")
    from torchyard.cli.output import say
    from torchyard.ui.places import places_of
    from torchyard.ui.serving import serve

    places = places_of(context, namespace)
    serve((PORT, 0) if port is None else (port,), places, say, browser=not no_browser)
    return SUCCEEDED
