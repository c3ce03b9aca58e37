"""A server whose collection an informer follows."""

import asyncio
import itertools
import json
from contextlib import asynccontextmanager

from tests.support.kubernetes.pod_json import pod

from torchyard.kubernetes.cache.informer import Informer
from torchyard.kubernetes.cache.pod_record import read
from torchyard.kubernetes.client.api import METADATA_OF_ALL
from torchyard.kubernetes.client.errors import TooLarge
from torchyard.kubernetes.objects import KubePod

PATH = "/api/v1/pods"


class Server:
    """A collection of pods that lists and watches as the API server does; `lines` holds what a watch may tell."""

    def __init__(self) -> None:
        self.pods = {}
        self.version = 100
        self.watches = []
        self.lists = 0
        self.cached = None  # an old version and the pods there were, as a server's cache may tell them
        self.errors = []
        self.streams = asyncio.Queue()
        self.page = 500

    async def request(self, verb, path, *, params=None, accept="", timeout=0, most=2**30):  # noqa: ASYNC109 -- as Api
        assert (verb, path) == ("GET", PATH)
        if self.errors:
            raise self.errors.pop(0)
        self.lists += 1
        version, pods = self.cached or (self.version, self.pods)
        everything = sorted(pods.values(), key=lambda each: each["metadata"]["name"])
        if accept == METADATA_OF_ALL:
            everything = [{"metadata": each["metadata"]} for each in everything]
        start = int(params.get("continue", 0))
        limit = min(int(params.get("limit", 0)), self.page)
        items = everything[start : start + limit] if limit else everything
        more = {"continue": str(start + limit)} if limit and start + limit < len(everything) else {}
        answer = json.dumps({"metadata": {"resourceVersion": str(version), **more}, "items": items}).encode()
        if len(answer) > most:
            raise TooLarge(f"{verb} {path}: the answer is larger than {most} bytes")
        return answer

    async def stream(self, path, params):
        self.watches.append(params["resourceVersion"])
        lines = await self.streams.get()
        while (line := await lines.get()) is not None:
            if isinstance(line, Exception):
                raise line
            yield line

    def watch(self):
        """The next watch tells what is put in here; None ends it."""
        lines = asyncio.Queue()
        self.streams.put_nowait(lines)
        return lines

    def make(self, index, **metadata):
        """A pod that exists now, and the version it has."""
        self.version += 1
        name = f"cvrp-0-{index}"
        made = pod(metadata={"name": name, "uid": f"uid-{index}", "resourceVersion": str(self.version), **metadata})
        self.pods[name] = made
        return made

    def remove(self, index):
        self.version += 1
        gone = self.pods.pop(f"cvrp-0-{index}")
        gone["metadata"]["resourceVersion"] = str(self.version)
        return gone


def line(kind, document):
    return json.dumps({"type": kind, "object": document}).encode()


@asynccontextmanager
async def following(server):
    heard = []
    informer = Informer(
        server,
        PATH,
        of=KubePod,
        read=read,
        changed=lambda before, after: heard.append((before and before.uid, after and after.uid)),
        jitter=lambda: 0.0,
    )
    task = asyncio.create_task(informer.run())
    yield informer, heard
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def moment():
    for _ in itertools.repeat(None, 20):
        await asyncio.sleep(0)


def known(informer):
    return sorted(each.pod.name for each in informer.objects.values())
