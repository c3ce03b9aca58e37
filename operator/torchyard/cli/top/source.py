"""What the dashboard shows, read through the backend of one location, beside the event loop of the terminal."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from torchyard.cli.views.table import WIDE_COLUMNS, row
from torchyard.client.backend import Backend, Kept, Unreadable
from torchyard.client.curves import Curves
from torchyard.client.job_details import JobDetails
from torchyard.client.location import Location, opened

T = TypeVar("T")
COLUMNS = ("NAMESPACE", *WIDE_COLUMNS)
NARROW = ("NAME", "STATE", "PROGRESS", "LOSS", "RATE", "ETA", "AGE")
"""Columns of a terminal with fewer than `WIDE` characters in a line."""
WIDE = 120
MAX_ROWS = 500


class Listed(NamedTuple):
    """The jobs of a location, each with its cells by column, newest first."""

    where: str
    rows: list[dict[str, str]]


class Shown(NamedTuple):
    """What the view of one job needs."""

    kept: Kept
    details: JobDetails
    curves: Curves
    flags: str


class Source:
    """Reads jobs of one location.

    Args:
        location: this machine, or a namespace of a cluster.
        everywhere: list the jobs of all namespaces.
    """

    def __init__(self, location: Location, *, everywhere: bool = False) -> None:
        self.location, self.everywhere = location, everywhere

    @property
    def pause(self) -> float:
        """Seconds between two looks."""
        return 1.0 if self.location.kind == "local" else 3.0

    def at(self, namespace: str) -> "Source":
        """Return the source of the jobs of one namespace; an empty one: this one."""
        return Source(self.location._replace(namespace=namespace)) if namespace else self

    async def ask(self, work: Callable[[Backend], Awaitable[T]]) -> T:
        """Do `work` with the backend. Raises what that does."""

        async def asked() -> T:
            async with opened(self.location, lambda _sentence: None) as backend:
                return await work(backend)

        # Files may be large, and a disk slow; keys must be answered.
        return await asyncio.to_thread(lambda: asyncio.run(asked()))

    async def jobs(self) -> Listed:
        """Return the list. Raises `TorchYardError`."""

        async def read(backend: Backend) -> Listed:
            listed = await backend.summaries(everywhere=self.everywhere)
            now = time.time()
            rows = [
                {"NAME": each.name, "STATE": "Unreadable", "NAMESPACE": ""}
                if isinstance(each, Unreadable)
                else dict(zip(COLUMNS, (each.namespace * self.everywhere, *row(each, now, wide=True)), strict=True))
                for each in listed
            ]
            where = f"all namespaces of {backend.cluster}" if self.everywhere else backend.where
            return Listed(where, rows)

        return await self.ask(read)

    async def job(self, name: str) -> Shown:
        """Return one job with its curves. Raises `TorchYardError`."""

        async def read(backend: Backend) -> Shown:
            kept, details = await backend.inspect(name)
            return Shown(kept, details, await backend.curves(name), backend.flags)

        return await self.ask(read)


def matches(cells: dict[str, str], words: str) -> bool:
    """Return whether each word is in the name, state, reason or namespace of a job."""
    text = " ".join(cells.get(column, "") for column in ("NAMESPACE", "NAME", "STATE", "REASON")).lower()
    return all(word in text for word in words.lower().split())
