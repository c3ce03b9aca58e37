"""The output of all ranks of a job, merged from the logs of its pods, starting with the rank that failed first."""

import asyncio
import contextlib
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterator, Sequence

from torchyard.api.formatting import clean
from torchyard.api.status import Attempt
from torchyard.client.backend import LogLine, Notice
from torchyard.client.errors import TorchYardError
from torchyard.client.ranks import failing_rank
from torchyard.client.remote import jobs
from torchyard.client.remote.session import Remote
from torchyard.kubernetes.client.errors import Gone, NotFound, Rejected
from torchyard.kubernetes.manifests.names import TRAINER
from torchyard.reconcile.observed import Pod
from torchyard.reconcile.ports import Unavailable

FORBIDDEN = 403
POLL_SECONDS = 1.0
SILENT_SECONDS = 5.0  # of pods whose job is over and whose logs do not end
_OF_A_RANK = re.compile(r"\[rank (\d{1,6})\] ?")

QUEUED_LINES = 1000  # read ahead of a slow reader, on whom the logs then wait
Wanted = Callable[[LogLine], bool]


async def read(
    remote: Remote, name: str, notice: Notice, uid: str = "", *, rank: int | None, follow: bool, tail: int | None
) -> AsyncIterator[LogLine]:
    """Yield the output of the ranks; with `follow`, until the job is over, through new rounds and pods.

    Raises:
        TorchYardError: a rank is requested, but the output does not distinguish ranks.
    """
    job = jobs.typed(await jobs.get(remote, name))
    agent = job.spec.launcher.kind == "agent"
    if rank is not None and not agent:
        raise TorchYardError(f"{name!r} has no agent (launcher.kind: none) to distinguish ranks", "leave --rank out")
    if follow:
        async for line in _followed(LogFollower(remote, name, notice, tail=tail, uid=uid, agent=agent)):
            if rank is None or line.rank == rank:
                yield line
        return
    pods = await jobs.pods(remote, job)
    first = failing_rank(job.status.attempts) if rank is None else None
    found = False
    for line in of_gone_pods(job.status.attempts, {pod.name for pod in pods}, rank, tail):
        found = True
        yield line
    # Twice through the logs rather than once through memory: a log may be as large as its node allows.
    if first is not None:
        async for line in _chosen(remote, pods, notice, tail, lambda line: line.rank == first, agent):
            found = True
            yield line
    wanted = (lambda line: first is None or line.rank != first) if rank is None else (lambda line: line.rank == rank)
    async for line in _chosen(remote, pods, notice, tail, wanted, agent):
        found = True
        yield line
    if not found:
        notice(f"{name}: " + ("no pod of it is left" if not pods else "nothing was written yet"))
    elif not pods:
        notice(f"{name}: no pod of it is left; these are the last lines that its status keeps of each failed round")


def of_gone_pods(
    attempts: Sequence[Attempt], pods: Container[str], rank: int | None, tail: int | None
) -> Iterator[LogLine]:
    """Yield the last lines of the failing rank of each round whose pod is gone, which the status keeps (pure)."""
    for attempt in attempts:
        cause = attempt.cause
        if cause is None or cause.pod in pods or (rank is not None and cause.rank != rank):
            continue
        for text in cause.lines if tail is None else cause.lines[max(0, len(cause.lines) - tail) :]:
            yield LogLine(rank=cause.rank, pod=cause.pod, text=clean(text), round=attempt.round)


async def _followed(follower: "LogFollower") -> AsyncIterator[LogLine]:
    queue: asyncio.Queue[LogLine | None] = asyncio.Queue(QUEUED_LINES)

    async def follow() -> None:
        try:
            await follower.until_over(queue.put)
        finally:
            with contextlib.suppress(asyncio.QueueFull):
                queue.put_nowait(None)

    reading = asyncio.create_task(follow())
    try:
        while not (reading.done() and queue.empty()):
            line = await queue.get()
            if line is not None:
                yield line
        await reading
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def lines(
    remote: Remote, pod: str, *, agent: bool, follow: bool = False, after: str = ""
) -> AsyncIterator[LogLine]:
    """Lines of a pod's trainer, oldest first.

    Args:
        remote: the cluster.
        pod: its name.
        agent: whether it has one, which marks the lines of ranks.
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
            rank, said = (int(found[1]), text[found.end() :]) if found else (None, text)
            yield LogLine(rank=rank, pod=pod, text=clean(said), time=at, agent=agent and rank is None)


class Newest:
    """The last lines of each rank. The server counts lines of a whole pod, in which one rank may drown the others."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._number = 0
        self._of: dict[int | None, deque[tuple[int, LogLine]]] = {}

    def add(self, line: LogLine) -> None:
        """Add one more line, of any rank."""
        self._number += 1
        self._of.setdefault(line.rank, deque(maxlen=self._count)).append((self._number, line))

    def in_order(self) -> list[LogLine]:
        """Return the lines that were kept, in their order."""
        return [line for _, line in sorted(kept for lines in self._of.values() for kept in lines)]


async def _chosen(  # noqa: PLR0917
    remote: Remote, pods: list[Pod], notice: Notice, tail: int | None, wanted: Wanted, agent: bool
) -> AsyncIterator[LogLine]:
    for pod in pods:
        newest = Newest(tail) if tail is not None else None
        try:
            async for line in lines(remote, pod.name, agent=agent):
                if wanted(line) and newest is None:
                    yield line
                elif wanted(line) and newest is not None:
                    newest.add(line)
        except (NotFound, Rejected, Gone) as error:
            notice(f"torchyard: {pod.name} has no log: {pod.message or error}")
        for line in newest.in_order() if newest is not None else ():
            yield line


class LogFollower:
    """Follows the logs of a job's pods, also of those that appear later; a stream that breaks is opened again.

    Args:
        remote: the cluster.
        name: of the job.
        notice: is called where the logs cannot be read for now.
        tail: of what is there already, only so many lines of each rank.
        uid: of the job; later jobs with the same name are not followed.
        agent: whether its pods have one.
    """

    def __init__(
        self, remote: Remote, name: str, notice: Notice, *, tail: int | None = None, uid: str = "", agent: bool = True
    ) -> None:
        self.remote, self.name, self.uid, self.tail = remote, name, uid, tail
        self.notice, self.agent = notice, agent
        self.streams: dict[str, asyncio.Task[None]] = {}
        self.seen: dict[str, str] = {}  # pod -> time of its newest line
        self.heard = time.monotonic()
        self.answers = True

    async def until_over(self, report: Callable[[LogLine], Awaitable[None]]) -> None:
        """Follow until the job is over and its logs have ended; wait for `report` with each line.

        Raises:
            Rejected: the logs may not be read.
            OSError: standard output is closed.
        """
        self.report = report
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
            await self._report_newest(pod, self.tail)
            return
        async for line in lines(self.remote, pod, agent=self.agent, after=self.seen.get(pod, "")):
            await self._forward(line)

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
                self.notice(f"torchyard: the API server does not answer, trying on: {error}")
            self.answers = False
            return False
        except NotFound:
            return True
        self.answers = True
        return job.is_over

    def _raise_what_ended_a_stream(self) -> None:
        for task in self.streams.values():
            if task.done():
                task.result()

    async def _stream(self, pod: str) -> None:
        while True:
            try:
                if self.tail is not None and pod not in self.seen:
                    await self._report_newest(pod, self.tail)
                async for line in lines(self.remote, pod, agent=self.agent, follow=True, after=self.seen.get(pod, "")):
                    await self._forward(line)
            except (NotFound, Gone):
                return  # the pod is gone, and its log with it
            except (Rejected, Unavailable) as error:  # it has not started yet, or the connection broke in a silence
                if isinstance(error, Rejected) and error.code == FORBIDDEN:
                    raise
                await asyncio.sleep(POLL_SECONDS)
            else:
                return

    async def _report_newest(self, pod: str, count: int) -> None:
        """Report the last lines of each rank so far."""
        seen, newest = "", Newest(count)
        async for line in lines(self.remote, pod, agent=self.agent):
            seen = line.time
            newest.add(line)
        for line in newest.in_order():
            await self._forward(line)
        if seen:
            self.seen[pod] = seen

    async def _forward(self, line: LogLine) -> None:
        self.heard = time.monotonic()
        await self.report(line)
        self.seen[line.pod] = line.time  # not before: a line that was not reported is read again
