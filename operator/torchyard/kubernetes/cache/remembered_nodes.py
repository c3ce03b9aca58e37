"""The memory of nodes that failed jobs, shared by the operators of one installation through their Lease.

The leader publishes it with each renewal, so that no further right and no further object is needed, and the next leader
has read it before it leads. Only remembered nodes are read, to learn whether one was repaired or created again.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable

import msgspec
from msgspec.structs import replace

from torchyard.api.names import REPAIRED
from torchyard.api.reasons import Reason
from torchyard.api.resource import TrainingJob
from torchyard.api.values import Duration, Time
from torchyard.kubernetes.client.api import Api
from torchyard.kubernetes.client.errors import Gone, NotFound, Rejected
from torchyard.kubernetes.objects import Node
from torchyard.reconcile.node_memory import NodeMemory, Strike, merged, remembered, strikes_of
from torchyard.reconcile.ports import Unavailable

LOOK_SECONDS = 30.0
OFF = "off"
ANNOTATION = "torchyard.dev/node-memory"

_log = logging.getLogger(__name__)
_ENTRIES = msgspec.json.Decoder(tuple[tuple[str, int, str, str, float], ...])


class RememberedNodes:
    """The nodes that failed jobs of this installation.

    Args:
        api: the server.
        half_life: seconds in which a failure loses half of its weight; 0: jobs do not learn from each other.
        clock: unix seconds.
        leading: whether this process leads; only then it reads nodes.
    """

    def __init__(
        self, api: Api, half_life: float, *, clock: Callable[[], float], leading: Callable[[], bool] = lambda: True
    ) -> None:
        self.memory = NodeMemory(half_life=half_life)
        self._api, self._clock, self._leading = api, clock, leading
        self._node = msgspec.json.Decoder(Node)
        self._news = asyncio.Event()
        self._logged: set[str] = set()

    @property
    def count(self) -> int:
        """Return the number of nodes that the pods of every job avoid."""
        return len(remembered(self.memory, self._clock()))

    def learn(self, jobs: Iterable[TrainingJob]) -> None:
        """Remember the failures in the statuses of these jobs."""
        if not self.memory.half_life:
            return
        strikes = [each for job in jobs for each in strikes_of("/".join(job.key), job.status.attempts)]
        if strikes:
            self._take(strikes)

    def published(self) -> str:
        """Return the memory as text, for the Lease; empty: nothing is remembered."""
        rows = [(each.node, each.time, each.job, each.reason, each.weight) for each in self.memory.strikes]
        return msgspec.json.encode(rows).decode() if rows else ""

    def read(self, text: str) -> None:
        """Add what another process has published; a text that was edited by hand and cannot be read adds nothing."""
        try:
            rows = _ENTRIES.decode(text) if text and self.memory.half_life else ()
        except msgspec.MsgspecError as error:
            _log.warning("annotation %s of the Lease is ignored: %s", ANNOTATION, error)
            return
        known = ((row, Reason.of(row[3])) for row in rows)
        self._take(
            Strike(node=node, time=time, job=job, reason=reason, weight=min(1.0, weight))
            for (node, time, job, _, weight), reason in known
            if reason is not None and time <= self._clock() and weight > 0
        )

    async def run(self) -> None:
        """Read the remembered nodes until cancelled, as long as this process may."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), LOOK_SECONDS)
            self._news.clear()
            try:
                if self._leading():
                    await self._look()
            except Rejected as error:
                _log.warning("nodes cannot be read, so that failures of nodes are only forgotten with time: %s", error)
                return
            except (Unavailable, Gone, msgspec.MsgspecError) as error:
                _log.warning("a remembered node cannot be read: %s", error)

    def _take(self, strikes: Iterable[Strike]) -> None:
        before, self.memory = self.memory, merged(self.memory, strikes, self._clock())
        if before is self.memory:
            return
        self._news.set()
        now = remembered(self.memory, self._clock())
        for node in now:
            if node not in self._logged:
                newest = max((each for each in self.memory.strikes if each.node == node), key=lambda each: each.time)
                _log.warning(
                    "node %s: %s (job %s); new pods prefer other nodes. Once it is repaired: kubectl annotate node %s "
                    "--overwrite %s=%s",
                    node, newest.reason, newest.job, node, REPAIRED, Time.of(self._clock()),
                )  # fmt: skip
        self._logged = set(now)

    async def _look(self) -> None:
        """Read each node that has strikes: one after the other, they are few."""
        cleared: dict[str, float] = {}
        for name in sorted({each.node for each in self.memory.strikes}):
            try:
                node = self._node.decode(await self._api.request("GET", f"/api/v1/nodes/{name}"))
            except NotFound:
                cleared[name] = float("inf")
            else:
                if since := clear_since(node):
                    cleared[name] = since
        if cleared != self.memory.cleared:
            self.memory = replace(self.memory, cleared=cleared)


def clear_since(node: Node) -> float:
    """Return the time up to which failures of a node do not count: it was created or declared repaired then."""
    times = [node.metadata.creation_timestamp or "", (node.metadata.annotations or {}).get(REPAIRED, "")]
    return max((_seconds(text, node.metadata.name) for text in times), default=0.0)


def half_life(text: str) -> float:
    """Return the seconds of a setting: a duration, or `off` for 0.

    Raises:
        ValueError: it is neither.
    """
    if text == OFF:
        return 0.0
    try:
        seconds = float(Duration(text))
    except ValueError as error:
        raise ValueError(f"{error}; or {OFF}") from error
    if seconds < 60:
        raise ValueError(f"{text!r} is shorter than a minute: write a longer duration, or {OFF}")
    return seconds


def _seconds(text: str, node: str) -> float:
    if not text:
        return 0.0
    try:
        return float(Time.parse(text))
    except ValueError as error:
        _log.warning("node %s: annotation %s is ignored: %s", node, REPAIRED, error)
        return 0.0
