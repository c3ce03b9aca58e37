"""What the page shows, as JSON: lists, jobs, curves, events. Everything is read through a backend."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from torchyard.api.formatting import addressed, clean
from torchyard.api.resource import status_document
from torchyard.client.backend import Backend, Unreadable
from torchyard.client.errors import TorchYardError
from torchyard.client.histories import Curve
from torchyard.client.location import Location, opened
from torchyard.client.summaries import summary_of

COLUMNS = Curve.__struct_fields__
QUIET_SECONDS = {"local": {"jobs": 0.7, "job": 0.4, "curves": 0.4}, "cluster": {"jobs": 3.0, "job": 1.5, "curves": 1.5}}
"""Seconds between two looks at what a page shows."""


class Topic(NamedTuple):
    """One thing that pages show: `jobs|here`, `job|here|NAME`, `curves|here|NAME|overview`, `logs|here|NAME`."""

    kind: str
    place: str
    name: str = ""
    scale: str = "overview"

    @classmethod
    def parse(cls, text: str) -> "Topic | None":
        """Return the topic of its text; None: there is no such topic."""
        parts = text.split("|")
        wanted = {"jobs": 2, "job": 3, "logs": 3, "curves": 4}.get(parts[0])
        scales = {"fine", "overview", "log"}
        fits = wanted == len(parts) and (len(parts) < 4 or parts[3] in scales)
        return cls(*parts) if fits and len(text) < 400 else None

    def __str__(self) -> str:
        parts = [self.kind, self.place, self.name, self.scale]
        return "|".join(parts[: {"jobs": 2, "job": 3, "logs": 3, "curves": 4}[self.kind]])


class Content(NamedTuple):
    """JSON, and the digest that changes with it."""

    data: bytes
    digest: str


class Reader:
    """Reads topics.

    Args:
        places: locations by the name that the page has for them.
    """

    def __init__(self, places: dict[str, Location]) -> None:
        self.places = places

    def location(self, place: str) -> Location:
        """Return the location of a place.

        Raises:
            TorchYardError: there is no such place.
        """
        if place not in self.places:
            raise TorchYardError(f"there is no place {place!r}", f"there are {', '.join(self.places)}")
        return self.places[place]

    async def ask(self, place: str, work: Callable[[Backend], Awaitable[Any]]) -> Any:
        """Do `work` with the backend of a place. Raises what the backend does."""
        async with opened(self.location(place), lambda _sentence: None) as backend:
            return await work(backend)

    async def read(self, topic: Topic) -> Content:
        """Return what a page shows of a topic; an error is shown in its place."""
        if (
            self.location(topic.place).kind == "local"
        ):  # reads files, which may be large: not in the thread of the server
            return await asyncio.to_thread(asyncio.run, self._read(topic))
        return await self._read(topic)

    async def _read(self, topic: Topic) -> Content:
        work = {"jobs": _jobs, "job": _job, "curves": _curves}[topic.kind]
        try:
            found = await self.ask(topic.place, lambda backend: work(backend, topic))
        except TorchYardError as error:
            found = {"error": error.sentence, "fix": error.fix}
        data = msgspec.json.encode(found, enc_hook=str)
        return Content(data, hashlib.blake2b(data, digest_size=12).hexdigest())

    def pause(self, topic: Topic) -> float:
        """Return the seconds between two looks at a topic."""
        return QUIET_SECONDS[self.location(topic.place).kind][topic.kind]


async def _jobs(backend: Backend, _topic: Topic) -> dict[str, Any]:
    listed = await backend.summaries()
    rows = [
        {"name": each.name, "state": "Unreadable", "reason": each.sentence}
        if isinstance(each, Unreadable)
        else {
            "name": each.name, "state": each.word, "reason": "" if each.interrupted else clean(each.reason),
            "progress": each.progress, "step": each.step, "loss": each.loss, "rate": each.rate,
            "goodput": each.goodput, "eta": each.eta if each.word == "Running" else "", "restarts": each.restarts,
            "start": each.started or each.created, "end": each.completed,
        }
        for each in listed
    ]  # fmt: skip
    return {"where": backend.where, "jobs": rows}


async def _job(backend: Backend, topic: Topic) -> dict[str, Any]:
    kept, details = await backend.inspect(topic.name)
    explained, events = await asyncio.gather(backend.explain(topic.name), backend.events(topic.name))
    job, status = kept.job, status_document(kept.job.status)
    for field in ("curves", "conditions", "columns", "lastUpdateTime"):
        status.pop(field, None)
    lines = [clean(line) for line in explained.sentence.splitlines()]
    summary = summary_of(job, controlled=kept.controlled, detached=kept.detached)
    return {
        "name": job.metadata.name,
        "where": backend.where,
        "local": not backend.cluster,
        "state": summary.word,
        "sentence": addressed(" ".join(lines[1:] or lines), job.metadata.name, backend.flags),
        "next": explained.next_command,
        "eta": summary.eta,
        "start": summary.started or summary.created,
        "end": summary.completed,
        "status": status,
        "spec": kept.document.get("spec", {}),
        "ranks": [each._asdict() for each in details.ranks[:512]],
        "pods": [
            {"name": pod.name, "node": pod.node, "phase": pod.phase, "why": pod.message or pod.reason}
            for pod in details.pods[:512]
        ],
        "events": [
            {"time": each.time, "type": each.type, "reason": each.reason, "message": clean(each.message)}
            for each in events[-200:]
        ],
    }


async def _curves(backend: Backend, topic: Topic) -> dict[str, Any]:
    found = await backend.curves(topic.name, None, topic.scale)  # type: ignore[arg-type]
    return {
        "sentence": found.sentence,
        "leftOut": found.left_out,
        "metrics": {
            name: [list(getattr(curve, column)) for column in COLUMNS] for name, curve in found.metrics.items()
        },
    }


ACTIONS: dict[str, Callable[[Backend, str], Awaitable[Any]]] = {
    "suspend": lambda backend, name: backend.suspend(name),
    "resume": lambda backend, name: backend.resume(name),
    "delete": lambda backend, name: backend.delete(name),
}
