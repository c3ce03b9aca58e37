"""One metric of many jobs for a page: a line of JSON, then the means of all curves as float32 one after the other."""

import asyncio
import hashlib
import sys
from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from torchyard.api.json_text import encoded
from torchyard.client.curves import Curves
from torchyard.client.errors import TorchYardError
from torchyard.client.local import metrics_file
from torchyard.client.overlays import MOST_NAMES, MOST_RUNS, Overlay, chosen, of_files, overlay_of
from torchyard.client.summaries import version_of
from torchyard.ui.content import Reader

MOST_OF_CLUSTER = 50
AT_A_TIME = 8


class Wanted(Struct, frozen=True):
    """What a page asks for: jobs of a place by the names of topics, a metric, and the version that it has."""

    place: str
    names: list[str]
    metric: str = ""
    known: str = ""


async def overlay(reader: Reader, wanted: Wanted) -> bytes | None:
    """Return what a page draws; None: nothing has changed since the version that it has.

    Raises:
        TorchYardError: there is no such place, or there are too many jobs.
    """
    local = reader.location(wanted.place).kind == "local"
    names, most = list(dict.fromkeys(wanted.names)), MOST_RUNS if local else MOST_OF_CLUSTER
    if len(names) > most:
        raise TorchYardError(f"{len(names):,} jobs are too many: {most:,} is the limit", "choose fewer of them")
    if not local:
        return _packed(await _of_cluster(reader, wanted, names), "")
    return await asyncio.to_thread(_of_files, wanted, names)


def _of_files(wanted: Wanted, names: Sequence[str]) -> bytes | None:
    paths = {name: metrics_file(name) for name in names}
    marks = repr([version_of(path) for path in paths.values()])
    version = hashlib.blake2b(marks.encode(), digest_size=12).hexdigest()
    if version == wanted.known:
        return None
    found = of_files(paths, wanted.metric)
    return _packed(found, "" if found.later else version)


async def _of_cluster(reader: Reader, wanted: Wanted, names: Sequence[str]) -> Overlay:
    limit = asyncio.Semaphore(AT_A_TIME)

    async def one(name: str) -> Curves | None:
        async with limit:
            try:
                found: Curves = await reader.ask(wanted.place, name, lambda backend, job: backend.curves(job))
            except TorchYardError:
                return None
            return found

    every = {name: each for name, each in zip(names, await asyncio.gather(*map(one, names)), strict=True) if each}
    known = Counter(metric for each in every.values() for metric in each.metrics)
    metric = wanted.metric or chosen(known)
    curves = {name: each.metrics[metric] for name, each in every.items() if metric in each.metrics}
    return overlay_of(metric, [name for name, _ in known.most_common(MOST_NAMES)], curves, len(names))


def _packed(found: Overlay, version: str) -> bytes:
    lines = [
        {"name": each.name, "offset": each.offset, "cells": len(each.cells), "last": each.last, "low": each.low,
         "high": each.high, "step": each.step, "bad": each.bad}
        for each in found.lines
    ]  # fmt: skip
    head = encoded(
        {"metric": found.metric, "metrics": found.metrics, "first": found.first, "width": found.width,
         "without": found.without, "later": found.later, "version": version, "lines": lines}
    )  # fmt: skip
    head += b" " * (-(len(head) + 1) % 4) + b"\n"  # the numbers begin at a multiple of their size
    for each in found.lines:
        if sys.byteorder == "big":
            each.cells.byteswap()
    return b"".join([head, *(each.cells.tobytes() for each in found.lines)])
