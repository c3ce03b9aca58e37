"""Open the page: `torchyard ui`."""

import asyncio
import contextlib
import os
import socket
import webbrowser
from argparse import ArgumentParser

from aiohttp import web

from torchyard.cli import arguments as common
from torchyard.cli.errors import FAILED, SUCCEEDED, RefusalError
from torchyard.cli.output import say
from torchyard.client.location import HERE, Location, is_configured
from torchyard.ui.access import Access
from torchyard.ui.server import PORT, application

ADDRESS = "127.0.0.1"
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

    Shows the runs of this machine and the jobs of a namespace live in a browser, until Ctrl-C. The page has the rights
    of your kubeconfig and reaches no other server. Its link works once; each use prints another one.
    """
    listening = _listening(port)
    places = {"here": HERE}
    if context is not None or namespace is not None or is_configured():
        places["cluster"] = Location("cluster", context, namespace)
    with contextlib.suppress(KeyboardInterrupt), contextlib.closing(listening):
        asyncio.run(_serve(listening, places, opens=not no_browser and "SSH_CONNECTION" not in os.environ))
    return SUCCEEDED


def _listening(port: int | None) -> socket.socket:
    """Return the socket of the server.

    Raises:
        RefusalError: the port is in use, or no number of a port.
    """
    if port is not None and port > MAX_PORT:
        raise RefusalError(f"--port {port} is not a port", f"give one from 1 to {MAX_PORT}")
    for each in (port,) if port is not None else (PORT, 0):
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((ADDRESS, each))
        except OSError as error:
            listening.close()
            why = error.strerror
        else:
            return listening
    raise RefusalError(f"port {port} of {ADDRESS} cannot be used: {why}", "give another --port, or none", FAILED)


async def _serve(listening: socket.socket, places: dict[str, Location], *, opens: bool) -> None:
    port = listening.getsockname()[1]
    links: list[str] = []

    def on_link(path: str) -> None:
        links.append(f"http://{ADDRESS}:{port}{path}")
        say(f"{'open' if len(links) == 1 else 'for another browser:'} {links[-1]}")

    access = Access(port, on_link)
    runner = web.AppRunner(application(places, access), access_log=None, shutdown_timeout=2.0)
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        if "SSH_CONNECTION" in os.environ:
            say(f"on your own machine first: ssh -L {port}:{ADDRESS}:{port} {socket.gethostname()}")
        access.new_link()
        if opens:
            await asyncio.to_thread(webbrowser.open, links[0])
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
