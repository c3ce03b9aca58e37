"""What a page asks for once: actions, artifacts, stacks, profiles, differences, and new runs."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec
from msgspec import Struct

from torchyard.api.formatting import clean
from torchyard.client.backend import Backend
from torchyard.client.diff import compare, sides
from torchyard.client.errors import TorchYardError
from torchyard.client.location import Location, opened
from torchyard.client.profile_request import wish_for
from torchyard.client.ranks import NO_STACKS
from torchyard.client.sweeps import Sweep
from torchyard.local.sweeps import interrupt_sweep
from torchyard.sweeps.sampler import Sampler
from torchyard.ui import runs
from torchyard.ui.content import Reader
from torchyard.ui.files import Shelf
from torchyard.ui.sweeps import importances_of

MAX_STACKS = 512
PROFILE_STEPS = 3


class Request(Struct, frozen=True, rename="camel"):
    """A request of a page: what it asks, and of which job or sweep; the other fields belong to some of them."""

    what: str
    place: str = "here"
    name: str = ""
    kind: Literal["job", "sweep"] = "job"
    path: str = ""
    text: str = ""
    other_place: str = "here"
    other_name: str = ""
    profile: Literal["trace", "memory"] = "trace"


READING = frozenset({"diff", "specification"})
"""Requests that the API server answers as they are: no action, no command in a pod, no process of the server."""


class Requests:
    """Answers requests.

    Args:
        reader: of the page.
        only: names of the requests that are answered; None: all.
    """

    def __init__(self, reader: Reader, only: frozenset[str] | None = None) -> None:
        self._reader = reader
        self._sampler = Sampler()
        self.shelf = Shelf()
        answers: dict[str, Callable[[Request], Awaitable[Any]]] = {
            "suspend": self._suspend, "resume": self._resume, "delete": self._delete, "artifacts": self._artifacts,
            "open": self._open, "stacks": self._stacks, "profile": self._profile, "diff": self._diff,
            "specification": self._specification, "check": self._check, "submit": self._submit,
            "importances": self._importances,
        }  # fmt: skip
        self._answers = {what: answer for what, answer in answers.items() if only is None or what in only}

    async def answer(self, request: Request) -> Any:
        """Return the answer.

        Raises:
            TorchYardError: there is no such request, job or right.
        """
        if request.what not in self._answers:
            raise TorchYardError(f"there is no request {request.what!r}", f"there are {', '.join(self._answers)}")
        return await self._answers[request.what](request) or {}

    async def close(self) -> None:
        """End the sampler's process, and delete copies of artifacts."""
        await self._sampler.close()
        await self.shelf.close()

    def _at(self, request: Request) -> tuple[Location, str]:
        return self._reader.at(request.place, request.name)

    async def _ask(self, request: Request, work: Callable[[Backend, str], Awaitable[Any]]) -> Any:
        if self._reader.location(request.place).kind == "cluster":
            return await self._reader.ask(request.place, request.name, work)
        # It reads files or waits for processes: not in the thread of the server.
        return await asyncio.to_thread(lambda: asyncio.run(self._reader.ask(request.place, request.name, work)))

    async def _suspend(self, request: Request) -> None:
        location, name = self._at(request)
        if request.kind == "job":
            await self._ask(request, lambda backend, name: backend.suspend(name))
        elif location.kind == "cluster":
            await Sweep(name, "", location).stop()
        else:
            try:
                await asyncio.to_thread(interrupt_sweep, name)
            except ValueError as error:
                raise TorchYardError(str(error).rstrip(".")) from error

    async def _resume(self, request: Request) -> None:
        location, name = self._at(request)
        if location.kind == "local":
            await (runs.resume_here(name) if request.kind == "job" else runs.resume_sweep_here(name))
        elif request.kind == "job":
            await self._ask(request, lambda backend, name: backend.resume(name))
        else:
            await Sweep(name, "", location).resume()

    async def _delete(self, request: Request) -> None:
        if request.kind == "job":
            await self._ask(request, lambda backend, name: backend.delete(name))
        else:
            location, name = self._at(request)
            await Sweep(name, "", location).delete()

    async def _artifacts(self, request: Request) -> Any:
        found = await self._ask(request, lambda backend, name: backend.artifacts(name))
        rows = [
            {"path": each.path, "shown": clean(each.path), "bytes": each.bytes, "files": each.files,
             "folder": each.is_folder}
            for each in found[:1000]
        ]  # fmt: skip
        return {"artifacts": rows}

    async def _open(self, request: Request) -> Any:
        return await self._reader.ask(
            request.place, request.name, lambda backend, name: self.shelf.open(backend, name, request.path)
        )

    async def _stacks(self, request: Request) -> Any:
        found = await self._ask(request, lambda backend, name: backend.stacks(name))
        rows = [
            {"rank": each.rank, "pod": each.pod, "at": clean(each.at), "waits": each.waits,
             "lines": [clean(line) for line in (each.stacks or NO_STACKS).strip().splitlines()]}
            for each in found[:MAX_STACKS]
        ]  # fmt: skip
        return {"stacks": rows}

    async def _profile(self, request: Request) -> Any:
        wish = wish_for(request.profile, PROFILE_STEPS, None)
        pods = await self._ask(request, lambda backend, name: backend.profile(name, wish, replace=False))
        return {"pods": pods, "steps": PROFILE_STEPS}

    async def _diff(self, request: Request) -> Any:
        (here, left), (there, right) = self._at(request), self._reader.at(request.other_place, request.other_name)
        async with opened(here, _ignored) as backend, opened(there, _ignored) as other:
            return msgspec.to_builtins(compare(*await sides(left, backend, right, other)))

    async def _specification(self, request: Request) -> Any:
        return await runs.specification(*self._at(request), request.kind)

    async def _check(self, request: Request) -> Any:
        return await runs.problems_of(self._at(request)[0], request.text)

    async def _submit(self, request: Request) -> Any:
        return await runs.submit(self._at(request)[0], request.text)

    async def _importances(self, request: Request) -> Any:
        return await importances_of(*self._at(request), self._sampler)


def _ignored(_sentence: str) -> None:
    pass
