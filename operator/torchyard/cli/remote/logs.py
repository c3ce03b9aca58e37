"""The output of all ranks of a job, merged from the logs of its pods; the rank that failed first in front."""

import asyncio
import contextlib
import re
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from torchyard.cli.errors import SUCCEEDED, RefusalError
from torchyard.cli.output import say
from torchyard.cli.ranks import failing_rank
from torchyard.cli.remote import jobs
from torchyard.cli.remote.session import Remote
from torchyard.cli.words import clean
from torchyard.cluster.kube.errors import Gone, NotFound, Rejected
from torchyard.cluster.kube.manifest.names import TRAINER
from torchyard.engine.ports import Unavailable
from torchyard.engine.view import Pod

FORBIDDEN = 403
POLL_SECONDS = 1.0
SILENT_SECONDS = 5.0  # of pods whose job is over and whose logs do not end
_OF_A_RANK = re.compile(r"\[rank (\d{1,6})\] ?")

Wanted = Callable[["Line"], bool]


class Line(NamedTuple):
    """One line of a pod's log."""

    time: str  # RFC 3339 with nanoseconds, the kubelet's
    pod: str
    rank: int | None  # None: the agent's own, or of a pod without an agent, which tells no ranks apart
    text: str

    def shown(self, agent: bool) -> str:
        """As `torchyard logs` prints it; `agent`: whether the pod has one."""
        who = f"r{self.rank} " if self.rank is not None else "agent " if agent else ""
        return f"[{who}{self.pod}] {self.text}"


async def show(remote: Remote, name: str, *, rank: int | None, follow: bool, tail: int | None) -> int:
    """Print what the ranks said; with `follow`, go on until the job is over, through new rounds and pods.

    Raises:
        RefusalError: a rank is asked for where the output does not tell ranks apart.
    """
    job = jobs.typed(await jobs.get(remote, name))
    agent = job.spec.launcher.kind == "agent"
    if rank is not None and not agent:
        raise RefusalError(f"{name!r} has no agent (launcher.kind: none) that tells ranks apart", "leave --rank out")
    if follow:

        def heard(line: Line) -> None:
            if rank is None or line.rank == rank:
                print(line.shown(agent), flush=True)

        await LogFollower(remote, name, heard, tail=tail).until_over()
        return SUCCEEDED
    pods = await jobs.pods(remote, job)
    first = failing_rank(job.status.attempts) if rank is None else None
    said = 0
    if first is not None:
        # Twice through the logs rather than once through memory: a log may be as large as its node allows.
        said += await _print(remote, pods, tail, lambda line: line.rank == first, agent)
    wanted = (lambda line: first is None or line.rank != first) if rank is None else (lambda line: line.rank == rank)
    said += await _print(remote, pods, tail, wanted, agent)
    if not said:
        say(f"{name}: " + ("no pod of it is left" if not pods else "nothing was written yet"))
    return SUCCEEDED


async def lines(remote: Remote, pod: str, *, follow: bool = False, after: str = "") -> AsyncIterator[Line]:
    """Lines of a pod's trainer, oldest first.

    Args:
        remote: the cluster.
        pod: its name.
        follow: go on as long as the container runs and the connection holds.
        after: only lines younger than this time of a line.

    Raises:
        NotFound, Rejected, Gone, Unavailable: there is no log, or it cannot be read now.
    """
    params = {"container": TRAINER, "timestamps": "true"}
    params |= {"follow": "true"} if follow else {}
    params |= {"sinceTime": after} if after else {}
    async for raw in remote.api.stream(f"/api/v1/namespaces/{remote.namespace}/pods/{pod}/log", params):
        at, _, text = raw.decode("utf-8", "replace").partition(" ")
        if at > after:
            found = _OF_A_RANK.match(text)
            yield Line(at, pod, int(found[1]) if found else None, clean(text[found.end() :] if found else text))


class Newest:
    """The last lines of each rank. The server counts lines of a whole pod, in which one rank may drown the others."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._number = 0
        self._of: dict[int | None, deque[tuple[int, Line]]] = {}

    def add(self, line: Line) -> None:
        """One more line of whatever rank."""
        self._number += 1
        self._of.setdefault(line.rank, deque(maxlen=self._count)).append((self._number, line))

    def in_order(self) -> list[Line]:
        """What is kept, as it came."""
        return [line for _, line in sorted(kept for lines in self._of.values() for kept in lines)]


async def _print(remote: Remote, pods: list[Pod], tail: int | None, wanted: Wanted, agent: bool) -> int:
    said = 0
    for pod in pods:
        newest = Newest(tail) if tail is not None else None
        try:
            async for line in lines(remote, pod.name):
                if wanted(line):
                    said += 1
                    if newest is None:
                        sys.stdout.write(f"{line.shown(agent)}\n")
                    else:
                        newest.add(line)
        except (NotFound, Rejected, Gone) as error:
            say(f"torchyard: {pod.name} has no log: {pod.message or error}")
        for line in newest.in_order() if newest is not None else ():
            sys.stdout.write(f"{line.shown(agent)}\n")
    return said


class LogFollower:
    """Follows the logs of a job's pods, also of those that appear later; a stream that breaks is opened again.

    Args:
        remote: the cluster.
        name: of the job.
        heard: is called with each line.
        tail: of what is there already, only so many lines of each rank.
        uid: of the job; another one of its name is not followed.
    """

    def __init__(
        self, remote: Remote, name: str, heard: Callable[[Line], None], *, tail: int | None = None, uid: str = ""
    ) -> None:
        self.remote, self.name, self.uid, self.tail = remote, name, uid, tail
        self.report = heard
        self.streams: dict[str, asyncio.Task[None]] = {}
        self.seen: dict[str, str] = {}  # pod -> time of its newest line
        self.heard = time.monotonic()
        self.answers = True

    async def until_over(self) -> None:
        """Follow until the job is over and its logs have ended.

        Raises:
            Rejected: the logs may not be read.
            OSError: standard output is closed.
        """
        try:
            while not await self._look():
                await asyncio.sleep(POLL_SECONDS)
                self._raise_what_ended_a_stream()
            self.heard = time.monotonic()
            while pending := [task for task in self.streams.values() if not task.done()]:
                await asyncio.wait(pending, timeout=POLL_SECONDS)
                if time.monotonic() - self.heard > SILENT_SECONDS:
                    break
            self._raise_what_ended_a_stream()
        finally:
            for task in self.streams.values():
                task.cancel()
            await asyncio.gather(*self.streams.values(), return_exceptions=True)
        for pod in self.streams:
            with contextlib.suppress(NotFound, Gone, Rejected, Unavailable):
                await self._rest(pod)

    async def _rest(self, pod: str) -> None:
        """Read what a stream has left out: one may end before the last lines, or be given up as silent."""
        if self.tail is not None and pod not in self.seen:
            await self._print_newest(pod, self.tail)
            return
        async for line in lines(self.remote, pod, after=self.seen.get(pod, "")):
            self._heard(line)

    async def _look(self) -> bool:
        """Follow pods that are new; whether the job is over."""
        try:
            job = jobs.typed(await jobs.get(self.remote, self.name))
            if self.uid and job.metadata.uid != self.uid:
                return True
            for pod in await jobs.pods(self.remote, job):
                if pod.name not in self.streams:
                    self.streams[pod.name] = asyncio.create_task(self._stream(pod.name))
        except Unavailable as error:
            if self.answers:
                say(f"torchyard: the API server does not answer, trying on: {error}")
            self.answers = False
            return False
        except NotFound:
            return True
        self.answers = True
        return jobs.is_over(job)

    def _raise_what_ended_a_stream(self) -> None:
        for task in self.streams.values():
            if task.done():
                task.result()

    async def _stream(self, pod: str) -> None:
        while True:
            try:
                if self.tail is not None and pod not in self.seen:
                    await self._print_newest(pod, self.tail)
                async for line in lines(self.remote, pod, follow=True, after=self.seen.get(pod, "")):
                    self._heard(line)
            except (NotFound, Gone):
                return  # the pod is gone, and its log with it
            except (Rejected, Unavailable) as error:  # it has not started yet, or the connection broke in a silence
                if isinstance(error, Rejected) and error.code == FORBIDDEN:
                    raise
                await asyncio.sleep(POLL_SECONDS)
            else:
                return

    async def _print_newest(self, pod: str, count: int) -> None:
        """Report the last lines of each rank so far."""
        seen, newest = "", Newest(count)
        async for line in lines(self.remote, pod):
            seen = line.time
            newest.add(line)
        for line in newest.in_order():
            self._heard(line)
        if seen:
            self.seen[pod] = seen

    def _heard(self, line: Line) -> None:
        self.heard, self.seen[line.pod] = time.monotonic(), line.time
        self.report(line)
