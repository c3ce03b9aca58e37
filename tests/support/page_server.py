"""The server of the page over a folder of runs, in this process, on a port that stays the same when it starts again."""

import socket
from pathlib import Path

from aiohttp import web

from torchyard.client.location import HERE
from torchyard.ui.access import Access
from torchyard.ui.server import application


class PageServer:
    """Args: home: $TORCHYARD_HOME, which the caller sets."""

    def __init__(self, home: Path) -> None:
        self.home, self.links, self.runner = home, [], None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Serve."""
        access = Access(self.port, self.links.append)
        self.runner = web.AppRunner(application({"here": HERE}, access), shutdown_timeout=0.5)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", self.port, reuse_address=True).start()
        access.new_link()

    async def stop(self) -> None:
        """Stop serving; streams end."""
        await self.runner.cleanup()

    @property
    def link(self) -> str:
        """The newest link, which works once."""
        return self.url + self.links[-1]
