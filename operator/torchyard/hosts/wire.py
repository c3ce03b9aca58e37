"""Messages between the controller and its nodes: one JSON document each, behind its length, over TLS.

The controller sends what it wants of a node whenever that changes; a node sends how its pods are. Both say all of it
each time, so that a message that was lost with a connection is of no consequence.
"""

import asyncio
import struct
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from torchyard.reconcile.observed import Pod

MAX_BYTES = 8 * 2**20
_HEAD = struct.Struct("!I")
M = TypeVar("M")


class Hello(Struct, frozen=True):
    """The first message of a node."""

    host: str
    token: str


class PodOrder(Struct, frozen=True):
    """A pod that the node keeps: created if it is not there, and deleted once that is requested."""

    uid: str
    name: str
    index: int
    incarnation: int
    deleted: float | None = None
    """Seconds that it may take to end; None: it stays."""


class Orders(Struct, frozen=True):
    """What the controller wants of a node; pods that are not named are killed."""

    revision: int
    job: dict[str, Any]
    pods: tuple[PodOrder, ...]
    over: bool = False
    """The node ends, and so does all that it started."""


class FilePart(Struct, frozen=True):
    """Bytes of a file that the node shows: of a log what is new, of another file all of it."""

    path: str
    offset: int
    data: bytes


class Report(Struct, frozen=True):
    """How a node is: it has carried out the orders up to a revision."""

    revision: int
    pods: tuple[Pod, ...]
    tokens: dict[str, str]
    """SHA-256 of the token of each pod, by its uid."""
    files: tuple[FilePart, ...] = ()


async def send(writer: asyncio.StreamWriter, message: Struct) -> None:
    """Write one message.

    Raises:
        OSError: the connection is cut.
    """
    data = msgspec.json.encode(message)
    writer.write(_HEAD.pack(len(data)) + data)
    await writer.drain()


async def receive(reader: asyncio.StreamReader, type_: type[M]) -> M:
    """Read one message.

    Raises:
        OSError: the connection is cut, or what comes is no such message.
    """
    try:
        (length,) = _HEAD.unpack(await reader.readexactly(_HEAD.size))
        if length > MAX_BYTES:
            raise OSError(f"a message of {length} bytes")
        return msgspec.json.decode(await reader.readexactly(length), type=type_)
    except (asyncio.IncompleteReadError, msgspec.DecodeError, RecursionError) as error:
        raise OSError(f"the connection ended, or a message is damaged: {error}") from error
