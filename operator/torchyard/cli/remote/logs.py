"""The output of all ranks of a job, merged from the logs of its pods; the rank that failed first in front."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from torchyard.cli.errors import SUCCEEDED
from torchyard.cli.output import say
from torchyard.cli.ranks import failing_rank
from torchyard.cli.remote import jobs
from torchyard.cli.remote.follow import is_over
from torchyard.cli.remote.session import Remote
from torchyard.cli.words import clean
from torchyard.cluster.kube.errors import Gone, NotFound, Rejected
from torchyard.cluster.kube.manifest.names import TRAINER
from torchyard.engine.ports import Unavailable
from torchyard.engine.view import Pod

POLL_SECONDS = 1.0
LAST_SECONDS = 5.0
_OF_A_RANK = re.compile(r"\[rank (\d{1,6})\] ?")

Wanted = Callable[["Line"], bool]


class Line(NamedTuple):
    """One line of a pod's log."""

    time: str  # RFC 3339 with nanoseconds, the kubelet's
    pod: str
    rank: int | None  # None: the agent's own
    text: str

    @property
    def shown(self) -> str:
        """As `torchyard logs` prints it."""
        who = f"r{self.rank}" if self.rank is not None else "agent"
        return f"[{who} {self.pod}] {self.text}"


async def show(remote: Remote, name: str, *, rank: int | None, follow: bool, tail: int | None) -> int:
    """Print what the ranks said; with `follow`, go on until the job is over, through new rounds and pods."""
    job = jobs.typed(await jobs.get(remote, name))
    pods = await jobs.pods(remote, job)
    if follow:
        await _follow(remote, name, rank, tail)
        return SUCCEEDED
    first = failing_rank(job.status.attempts) if rank is None else None
    said = 0
    if first is not None:
        # Twice through the logs rather than once through memory: a log may be as large as its node allows.
        said += await _print(remote, pods, tail, lambda line: line.rank == first)
    wanted = (lambda line: first is None or line.rank != first) if rank is None else (lambda line: line.rank == rank)
    said += await _print(remote, pods, tail, wanted)
    if not said:
        say(f"{name}: " + ("no pod of it is left" if not pods else "nothing was written yet"))
    return SUCCEEDED


async def lines(
    remote: Remote, pod: str, *, follow: bool = False, tail: int | None = None, after: str = ""
) -> AsyncIterator[Line]:
    """Lines of a pod's trainer, oldest first.

    Args:
        remote: the cluster.
        pod: its name.
        follow: go on as long as the container runs and the connection holds.
        tail: only the last of them.
        after: only lines younger than this time of a line.

    Raises:
        NotFound, Rejected, Gone, Unavailable: there is no log, or it cannot be read now.
    """
    params = {"container": TRAINER, "timestamps": "true"}
    params |= {"follow": "true"} if follow else {}
    params |= {"tailLines": str(tail)} if tail is not None and not after else {}
    params |= {"sinceTime": after} if after else {}
    async for raw in remote.api.stream(f"/api/v1/namespaces/{remote.namespace}/pods/{pod}/log", params):
        time, _, text = raw.decode("utf-8", "replace").partition(" ")
        if time > after:
            found = _OF_A_RANK.match(text)
            yield Line(time, pod, int(found[1]) if found else None, clean(text[found.end() :] if found else text))


async def _print(remote: Remote, pods: list[Pod], tail: int | None, wanted: Wanted) -> int:
    said = 0
    for pod in pods:
        try:
            async for line in lines(remote, pod.name, tail=tail):
                if wanted(line):
                    said += 1
                    sys.stdout.write(f"{line.shown}\n")
        except (NotFound, Rejected, Gone) as error:
            say(f"torchyard: {pod.name} has no log: {pod.message or error}")
    return said


async def _follow(remote: Remote, name: str, rank: int | None, tail: int | None) -> None:
    """One stream a pod, taken up again when it breaks; pods that appear later are followed as well."""
    streams: dict[str, asyncio.Task[None]] = {}
    try:
        while True:
            try:
                job = jobs.typed(await jobs.get(remote, name))
                for pod in await jobs.pods(remote, job):
                    if pod.name not in streams:
                        streams[pod.name] = asyncio.create_task(_stream(remote, pod.name, rank, tail))
            except Unavailable as error:
                say(f"torchyard: the API server does not answer, trying on: {error}")
            except NotFound:
                break
            else:
                if is_over(job):
                    break
            await asyncio.sleep(POLL_SECONDS)
        if streams:
            await asyncio.wait(streams.values(), timeout=LAST_SECONDS)
    finally:
        for task in streams.values():
            task.cancel()
        await asyncio.gather(*streams.values(), return_exceptions=True)


async def _stream(remote: Remote, pod: str, rank: int | None, tail: int | None) -> None:
    seen = ""
    while True:
        try:
            async for line in lines(remote, pod, follow=True, tail=tail, after=seen):
                seen = line.time
                if rank is None or line.rank == rank:
                    print(line.shown, flush=True)
        except (NotFound, Gone):
            return  # the pod is gone, and its log with it
        except (Rejected, Unavailable):  # it has not started yet, or was silent for so long that nobody knows
            await asyncio.sleep(POLL_SECONDS)
        else:
            return
