"""What the page shows, as JSON: lists, jobs, curves, events. Everything is read through a backend."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from torchyard.api.formatting import addressed, clean
from torchyard.api.json_text import encoded
from torchyard.api.launch import checkpoint_claim
from torchyard.api.names import SWEEP
from torchyard.api.resource import status_document
from torchyard.client.backend import Backend, Unreadable
from torchyard.client.errors import TorchYardError
from torchyard.client.histories import Curve
from torchyard.client.local import metrics_file, named
from torchyard.client.location import Location, opened
from torchyard.client.summaries import seconds, summary_of, version_of
from torchyard.kubernetes.client.errors import Rejected, Unauthorized
from torchyard.reconcile.ports import Unavailable
from torchyard.ui.places import listed, within
from torchyard.ui.sweeps import sweep_page, sweep_rows

COLUMNS = Curve.__struct_fields__
QUIET_SECONDS = {
    "local": {"jobs": 0.7, "job": 0.4, "curves": 0.4, "sweeps": 2.0, "sweep": 1.0},
    "cluster": {"jobs": 3.0, "job": 1.5, "curves": 1.5, "sweeps": 5.0, "sweep": 3.0},
}
"""Seconds between two looks at what a page shows."""
SHARE = 9
"""A look takes at most a tenth of the time: the pause is so many times as long."""
MOST_SECONDS = 5.0
GONE = "The process that controlled it is gone: nothing would notice its end or a failure. Resume it to go on."
PARTS = {"jobs": 2, "sweeps": 2, "job": 3, "sweep": 3, "logs": 3, "curves": 4}
"""Parts of a topic by its kind."""


class Topic(NamedTuple):
    """One thing that pages show: `jobs|here`, `job|here|NAME`, `curves|here|NAME|overview`, `sweep|here|NAME`."""

    kind: str
    place: str
    name: str = ""
    scale: str = "overview"

    @classmethod
    def parse(cls, text: str) -> "Topic | None":
        """Return the topic of its text; None: there is no such topic."""
        parts = text.split("|")
        wanted = PARTS.get(parts[0])
        scales = {"fine", "overview", "log"}
        fits = wanted == len(parts) and (len(parts) < 4 or parts[3] in scales)
        return cls(*parts) if fits and len(text) < 400 else None

    def __str__(self) -> str:
        parts = [self.kind, self.place, self.name, self.scale]
        return "|".join(parts[: PARTS[self.kind]])


class Content(NamedTuple):
    """JSON, the digest that changes with it, and the status of the answer."""

    data: bytes
    digest: str
    status: int = 200
    """401 or 403: the API server rejects the user of a page in the cluster."""


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

    def at(self, place: str, text: str) -> tuple[Location, str]:
        """Return where a job of a place is, and its name. Raises what `location` does."""
        return within(self.location(place), text)

    async def ask(self, place: str, text: str, work: Callable[[Backend, str], Awaitable[Any]]) -> Any:
        """Do `work` with the backend of a job and its name. Raises what the backend does."""
        location, name = self.at(place, text)
        async with opened(location, lambda _sentence: None) as backend:
            return await work(backend, name)

    async def read(self, topic: Topic) -> Content:
        """Return what a page shows of a topic; an error is shown in its place."""
        if (
            self.location(topic.place).kind == "local"
        ):  # reads files, which may be large: not in the thread of the server
            return await asyncio.to_thread(lambda: asyncio.run(self._read(topic)))
        return await self._read(topic)

    async def _read(self, topic: Topic) -> Content:
        location, name = self.at(topic.place, topic.name)
        status = 200
        try:
            if topic.kind == "sweeps":
                found = await sweep_rows(location)
            elif topic.kind == "sweep":
                found = await sweep_page(location, name)
            else:
                async with opened(location, lambda _sentence: None) as backend:
                    found = await _of_jobs(backend, location, topic._replace(name=name))
        except TorchYardError as error:
            found = {"error": error.sentence, "fix": error.fix}
            status = 200 if location.api is None else status_of(error)
        data = encoded(found)
        return Content(data, hashlib.blake2b(data, digest_size=12).hexdigest(), status)

    def pause(self, topic: Topic, took: float) -> float:
        """Return the seconds between two looks at a topic, the last of which took so long."""
        quiet = QUIET_SECONDS[self.location(topic.place).kind][topic.kind]
        return max(quiet, min(took * SHARE, MOST_SECONDS))

    def mark(self, topic: Topic) -> tuple[int, ...] | None:
        """Return what changes with the files of a topic; None: only a look shows whether it has changed."""
        location, name = self.at(topic.place, topic.name)
        if location.kind != "local" or topic.kind != "curves":
            return None
        try:
            return (*version_of(metrics_file(name)), *version_of(named(name).status_file))
        except TorchYardError:
            return None


def status_of(error: TorchYardError) -> int:
    """Return the status of an answer with an error: 401, 403 or 503 as the API server's answer has it, else 200."""
    cause = error.__cause__
    if isinstance(cause, Unauthorized):
        return 401
    if isinstance(cause, Unavailable):
        return 503
    return 403 if isinstance(cause, Rejected) and cause.code == 403 else 200


async def _of_jobs(backend: Backend, location: Location, topic: Topic) -> dict[str, Any]:
    if topic.kind == "jobs":
        return await _jobs(backend, location)
    return await (_job if topic.kind == "job" else _curves)(backend, topic)


async def _jobs(backend: Backend, location: Location) -> dict[str, Any]:
    where, jobs = await listed(backend, location)
    rows = [
        {"name": each.name, "state": "Unreadable", "reason": each.sentence}
        if isinstance(each, Unreadable)
        else {
            "name": each.name, "namespace": each.namespace, "sweep": each.sweep,
            "state": each.word, "reason": "" if each.interrupted else clean(each.reason),
            "progress": each.progress, "step": each.step, "loss": each.loss, "rate": each.rate,
            "goodput": each.goodput, "eta": each.eta if each.word == "Running" else "", "restarts": each.restarts,
            "start": each.started or each.created, "end": each.completed,
        }
        for each in jobs
    ]  # fmt: skip
    return {"where": where, "jobs": rows}


async def _job(backend: Backend, topic: Topic) -> dict[str, Any]:
    kept, details = await backend.inspect(topic.name)
    explained, events = await asyncio.gather(backend.explain(topic.name), backend.events(topic.name))
    job, status = kept.job, status_document(kept.job.status)
    for field in ("curves", "conditions", "columns", "lastUpdateTime"):
        status.pop(field, None)
    lines = [clean(line) for line in explained.sentence.splitlines()]
    summary = summary_of(job, controlled=kept.controlled, detached=kept.detached)
    name = job.metadata.name
    return {
        "name": name,
        "where": backend.where,
        "local": not backend.cluster,
        "namespace": job.metadata.namespace,
        "sweep": job.metadata.labels.get(SWEEP, ""),
        "claim": checkpoint_claim(job.spec) is not None,
        "profiles": job.spec.trainer is not None and job.spec.trainer.mode == "train",
        "state": summary.word,
        "sentence": GONE if summary.interrupted else addressed(" ".join(lines[1:] or lines), name, backend.flags),
        "next": f"torchyard resume {name}" if summary.interrupted else explained.next_command,
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
        "rounds": [
            [each.start_step, each.end_step, seconds(each.start_time), seconds(each.end_time)] for each in found.rounds
        ],
        "metrics": {
            name: [list(getattr(curve, column)) for column in COLUMNS] for name, curve in found.metrics.items()
        },
    }
