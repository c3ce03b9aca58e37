"""The server on a Unix domain socket, for agents on the same machine; the folder's permissions protect it.

Anyone can listen on a loopback port: once a controller has died, another user's program could listen there and receive
the tokens of pods. A socket in a private folder cannot be taken over.

The address of a socket is limited to 108 bytes, a path to 4096. Therefore it is bound, and connected to, through the
descriptor of its folder: `/proc/self/fd/N/intake.sock` is always short.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from torchyard.agents.http.server import Application, Intake


@contextlib.asynccontextmanager
async def unix_intake(app: Application, path: Path) -> AsyncIterator[str]:
    """Listen on a socket; yield the base URL for agents.

    Args:
        app: from `server.application`.
        path: of the socket. A socket of a former process is replaced; the caller ensures that it is dead.

    Raises:
        OSError: on entering, if no socket can be created in the folder.
    """
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listener = await asyncio.to_thread(_bind, folder, path.name)
        try:
            async with Intake(app, listener=listener):
                yield f"unix:{path}"
        finally:
            listener.close()
            # By descriptor: a run of the same name may have replaced the folder at this path.
            await asyncio.to_thread(_unlink, folder, path.name)
    finally:
        os.close(folder)


def _bind(folder: int, name: str) -> socket.socket:
    _unlink(folder, name)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(listener.fileno(), 0o600)  # the bound socket inherits it
        listener.bind(f"/proc/self/fd/{folder}/{name}")
    except BaseException:
        listener.close()
        raise
    return listener


def _unlink(folder: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
