"""Nodes, read only when something depends on them.

No watch of all nodes: each of them writes tens of KiB every few minutes, of which we would need one bit. When a node is
not ready the node controller marks its pods, which we watch anyway; a pod that does not start or does not go in time is
the other hint, unless the same node starts others. Then the node is read by name until nothing points at it any more:
every two seconds while it is lost or marked, ever less often while it is well and only slow, as many nodes are at once
when many pods are made.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from decimal import Decimal

import msgspec

from torchyard.api.values import amount
from torchyard.kubernetes.client.api import REQUEST_SECONDS, Api
from torchyard.kubernetes.client.errors import Gone, NotFound, Rejected
from torchyard.kubernetes.client.pages import pages
from torchyard.kubernetes.objects import Listed, Node
from torchyard.reconcile.ports import Unavailable

PATH = "/api/v1/nodes"
LOOK_SECONDS = 2.0
SLOWEST_SECONDS = 30.0
ALL_SECONDS = 10.0
AT_ONCE = 8

_log = logging.getLogger(__name__)


class Nodes:
    """The nodes that a decision may depend on.

    Args:
        api: the server.
        suspicion: what points at a node: None nothing, True the control plane says it is not ready, False delay alone.
        changed: called with the name of a node that was lost or came back.
        measured: called when all nodes were read, or could not be.
    """

    def __init__(
        self,
        api: Api,
        *,
        suspicion: Callable[[str], bool | None],
        changed: Callable[[str], None],
        measured: Callable[[], None],
    ) -> None:
        self.known: tuple[Node, ...] = ()
        """All nodes, as they were when it was last asked to read them."""
        self.lost: set[str] = set()
        """Names of the nodes that are known not to be ready."""
        self._api, self._suspicion, self._changed, self._measured = api, suspicion, changed, measured
        self._followed: dict[str, asyncio.Task[None]] = {}
        self._calm: dict[str, asyncio.Event] = {}  # nodes that were well: set to read them before it is time
        self._measuring: asyncio.Task[None] | None = None
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._node = msgspec.json.Decoder(Node)
        self._page = msgspec.json.Decoder(Listed[Node])
        self._read = float("-inf")
        self._refused = self._rests = False

    def look(self, name: str) -> None:
        """Read this node soon: something depends on it."""
        if name and name not in self._followed:
            self._followed[name] = task = asyncio.create_task(self._follow(name))
            task.add_done_callback(lambda _task: self._followed.pop(name, None))
        elif name in self._calm and self._suspicion(name):
            self._calm[name].set()

    def measure(self) -> bool:
        """Request a list of all nodes, unless one was just read; return whether `measured` will be called."""
        if self._measuring is not None and not self._measuring.done():
            return not self._rests
        if self._refused or time.monotonic() - self._read < ALL_SECONDS:
            return False
        self._measuring = asyncio.create_task(self._measure())
        return True

    @property
    def awaited(self) -> bool:
        """Whether they are being read for the first time."""
        return not self.known and self._measuring is not None and not self._measuring.done()

    async def close(self) -> None:
        """Stop reading."""
        tasks = [*self._followed.values(), *([self._measuring] if self._measuring is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, name: str) -> None:
        pause = LOOK_SECONDS
        while (marked := self._suspicion(name)) is not None:
            async with self._at_once:
                lost = await self._is_lost(name, marked=marked)
            if lost is not None and lost != (name in self.lost):
                (self.lost.add if lost else self.lost.discard)(name)
                _log.warning("node %s %s", name, "is not ready" if lost else "is ready again")
                self._changed(name)
            pause = LOOK_SECONDS if marked or lost or lost is None else min(2 * pause, SLOWEST_SECONDS)
            await self._rest(name, pause)
        if name in self.lost:
            self.lost.discard(name)
            self._changed(name)

    async def _rest(self, name: str, seconds: float) -> None:
        """Wait before it is read again; a node that was well is read at once when it is marked."""
        if seconds == LOOK_SECONDS:
            await asyncio.sleep(seconds)
            return
        self._calm[name] = asyncio.Event()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._calm[name].wait(), seconds)
        del self._calm[name]

    async def _is_lost(self, name: str, *, marked: bool) -> bool | None:
        """None: not known."""
        try:
            return not self._node.decode(await self._api.request("GET", f"{PATH}/{name}")).ready
        except NotFound:
            return True
        except Rejected as error:
            # An operator of a few namespaces may not read nodes: what the control plane wrote on the pod must do.
            self._log_once(error)
            return marked
        except (Unavailable, Gone, msgspec.MsgspecError) as error:
            _log.warning("node %s cannot be read: %s", name, error)
            return None

    async def _measure(self) -> None:
        while not await self._read_all():
            # Until then messages do without; nothing else may happen to these pods that would have it tried again.
            self._rests = True
            self._measured()
            await asyncio.sleep(ALL_SECONDS)
            self._rests = False
        self._read = time.monotonic()
        self._measured()

    async def _read_all(self) -> bool:
        """Return whether there is no point in trying again."""
        found: list[Node] = []
        try:
            async for page in pages(self._api, PATH, self._page.decode, {}, timeout=REQUEST_SECONDS):
                found += page.items or []
        except Rejected as error:
            self._log_once(error)
        except (Unavailable, NotFound, Gone, msgspec.MsgspecError) as error:
            _log.warning("nodes cannot be read: %s", error)
            return False
        else:
            self.known = tuple(found)
        return True

    def _log_once(self, error: Rejected) -> None:
        if not self._refused:
            self._refused = True
            _log.warning("the operator may not read nodes, so messages contain no figures about them: %s", error)


def number(quantity: str | float) -> Decimal:
    """Return cores, bytes or GPUs; a quantity that is absent or cannot be read counts as 0."""
    try:
        return amount(str(quantity)) if quantity != "" else Decimal(0)
    except ValueError:
        return Decimal(0)
