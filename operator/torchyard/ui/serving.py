"""Serves the page on 127.0.0.1 until it is interrupted."""

import asyncio
import contextlib
import os
import socket
import webbrowser
from collections.abc import Callable

from aiohttp import web

from torchyard.client.errors import FAILED, TorchYardError
from torchyard.client.location import Location
from torchyard.ui.access import Access
from torchyard.ui.server import application

ADDRESS = "127.0.0.1"


def serve(ports: tuple[int, ...], places: dict[str, Location], say: Callable[[str], None], *, browser: bool) -> None:
    """Serve until Ctrl-C.

    Args:
        ports: to try one after the other; 0: any free one.
        places: locations by the name that the page has for them.
        say: prints a line.
        browser: open one, unless this terminal belongs to another machine.

    Raises:
        TorchYardError: no port is free, or the libraries of the page are not installed.
    """
    remote = "SSH_CONNECTION" in os.environ
    with contextlib.suppress(KeyboardInterrupt), contextlib.closing(_listening(ports)) as listening:
        asyncio.run(_serve(listening, places, say, remote=remote, browser=browser and not remote))


def _listening(ports: tuple[int, ...]) -> socket.socket:
    why = ""
    for port in ports:
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((ADDRESS, port))
        except OSError as error:
            listening.close()
            why = str(error.strerror)
        else:
            return listening
    raise TorchYardError(f"port {ports[-1]} of {ADDRESS} cannot be used: {why}", "give another --port, or none", FAILED)


async def _serve(
    listening: socket.socket, places: dict[str, Location], say: Callable[[str], None], *, remote: bool, browser: bool
) -> None:
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
        if remote:
            say(f"on your own machine first: ssh -L {port}:{ADDRESS}:{port} {socket.gethostname()}")
        access.new_link()
        if browser:
            await asyncio.to_thread(webbrowser.open, links[0])
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
