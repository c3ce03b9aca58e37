"""The intake on a Unix domain socket, for agents of the same machine: its folder says who may connect, and who listens.

A port of the loopback address is anybody's: once its controller is dead, another user's program could listen there and
be handed the tokens of pods. A socket in a folder that is this user's alone cannot be taken over.

The address of a socket has 108 bytes, a path has 4096. So it is bound, and connected to, by way of its folder's
descriptor: `/proc/self/fd/N/intake.sock` is short wherever the folder is.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from torchyard.intake.server import Application, Intake


@contextlib.asynccontextmanager
async def unix_intake(app: Application, path: Path) -> AsyncIterator[str]:
    """Listen on a socket; gives the base URL for agents.

    Args:
        app: what `server.application` made.
        path: of the socket. What a former process left there is replaced; see to it that it is dead.

    Raises:
        OSError: on entering, when the folder takes no socket.
    """
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listener = await asyncio.to_thread(_bind, folder, path.name)
        try:
            async with Intake(app, listener=listener):
                yield f"unix:{path}"
        finally:
            listener.close()
            # By descriptor: a run of the same name may have another folder at this path by now.
            await asyncio.to_thread(_unlink, folder, path.name)
    finally:
        os.close(folder)


def _bind(folder: int, name: str) -> socket.socket:
    _unlink(folder, name)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(listener.fileno(), 0o600)  # what is bound inherits it
        listener.bind(f"/proc/self/fd/{folder}/{name}")
    except BaseException:
        listener.close()
        raise
    return listener


def _unlink(folder: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
