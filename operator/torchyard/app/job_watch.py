"""kopf's watch of TrainingJobs and TrainingSweeps: their events are passed on; kopf does nothing else here.

It has its own thread and event loop. When kopf ends, it cancels every task of its loop that it did not find
there; and it ends on a watch error that is not 410, or when the CRD is deleted. Then only the watch begins again.

Only `on.event`, which makes no API call. Handlers for changes, timers, daemons and indexes would write annotations and
finalizers; the storages for those are null, so kopf compares nothing either: half of its cost per event.
"""

import asyncio
import contextlib
import logging
import random
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import kopf

from torchyard.api.resource import GROUP, PLURAL, VERSION
from torchyard.kubernetes.client.api import Api, connected
from torchyard.kubernetes.client.errors import Gone, NotFound, Rejected
from torchyard.reconcile.ports import Unavailable
from torchyard.sweeps.resource import PLURAL as SWEEPS

Heard = Callable[[str | None, Mapping[str, Any]], None]
"""Called with the type of an event (None: an object of a list) and the object as JSON."""

LOOK_SECONDS = 2.0
SWEEPS_SECONDS = 60.0
"""How often a cluster without TrainingSweeps is asked for them: an upgrade may bring them later."""
SERVER_SECONDS = 290
MAX_BACKOFF_SECONDS = 30.0
TURN_SECONDS = 4.0  # less than a liveness probe waits
_log = logging.getLogger(__name__)


class JobWatch:
    """Watches the jobs of a cluster, and its sweeps where it knows them.

    Args:
        api: to ask whether there are TrainingJobs at all.
        context: of the kubeconfig.
        namespaces: to watch; none: all.
        heard: called with every event of a job, in the event loop that `run` runs in.
        heard_sweep: the same for sweeps.
        missing: called with why jobs cannot be watched; with an empty sentence: they can.
    """

    def __init__(
        self,
        api: Api,
        context: str | None,
        namespaces: Sequence[str],
        *,
        heard: Heard,
        heard_sweep: Heard,
        missing: Callable[[str], None],
    ) -> None:
        self._api, self._context, self._namespaces = api, context, namespaces
        self._receivers, self._missing = {PLURAL: heard, SWEEPS: heard_sweep}, missing
        self._served: Collection[str] = ()
        self._loop: asyncio.AbstractEventLoop | None = None  # kopf's, while it has one
        self._stop: Callable[[], None] | None = None

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            while why := await self._unknown():
                self._missing(why)
                await asyncio.sleep(LOOK_SECONDS)
            self._missing("")
            look = asyncio.create_task(self._look_for_sweeps())
            try:
                await self._run_kopf()
            except Exception as error:  # noqa: BLE001 -- kopf gives up for many causes, and we for none of them
                _log.warning("the watch of TrainingJobs ended and is restarted: %s: %s", type(error).__name__, error)
            finally:
                look.cancel()
            await asyncio.sleep(random.uniform(0.5, 2.0))  # noqa: S311 -- jitter

    async def stuck(self) -> str:
        """Return why this process should be restarted: kopf's event loop hangs; empty: it does not, or is not there."""
        if self._loop is None:
            return ""
        turned = threading.Event()
        try:
            self._loop.call_soon_threadsafe(turned.set)
        except RuntimeError:
            return ""  # it was closed just now
        if await asyncio.to_thread(turned.wait, TURN_SECONDS):
            return ""
        return f"kopf: its event loop has not turned for {TURN_SECONDS:.0f} s"

    async def _unknown(self) -> str:
        """Return why nothing can be watched: kopf would wait for ever for a CRD that is missing at its start."""
        try:
            answer = await self._api.request("GET", f"/apis/{GROUP}/{VERSION}")
        except (NotFound, Rejected, Gone):
            answer = b""
        except Unavailable as error:
            return f"the API server does not answer: {error}"
        self._served = [plural for plural in self._receivers if f'"{plural}"'.encode() in answer]
        return (
            ""
            if PLURAL in self._served
            else "the TrainingJob CRD is not installed: `torchyard crd | kubectl apply --server-side -f -`"
        )

    async def _look_for_sweeps(self) -> None:
        """End the watch once sweeps are served that it does not watch: kopf looks for kinds at its start alone."""
        while SWEEPS not in self._served:
            await asyncio.sleep(SWEEPS_SECONDS)
            await self._unknown()
            if SWEEPS in self._served and self._stop is not None:
                self._stop()

    async def _run_kopf(self) -> None:
        here = asyncio.get_running_loop()
        over: asyncio.Future[None] = here.create_future()
        started = threading.Event()
        inside: dict[str, asyncio.Event] = {}

        def end(error: BaseException | None) -> None:
            if over.done():
                return
            over.set_exception(error) if isinstance(error, Exception) else over.set_result(None)

        def forward(plural: str, kind: str | None, document: Mapping[str, Any]) -> None:
            here.call_soon_threadsafe(self._receivers[plural], kind, document)

        def stop() -> None:
            if self._loop is not None:
                with contextlib.suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(inside["stop"].set)

        async def watch() -> None:
            self._loop, inside["stop"] = asyncio.get_running_loop(), asyncio.Event()
            started.set()
            await self._watch(forward, inside["stop"])

        def thread() -> None:
            error: BaseException | None = None
            try:
                asyncio.run(watch())
            except BaseException as caught:  # noqa: BLE001 -- raised where its result is awaited
                error = caught
            finally:
                started.set()
            # A loop that is closed already waits for nothing.
            with contextlib.suppress(RuntimeError):
                here.call_soon_threadsafe(end, error)

        self._stop = stop
        threading.Thread(target=thread, name="kopf", daemon=True).start()
        try:
            await asyncio.shield(over)
        finally:
            await asyncio.to_thread(started.wait)
            loop, self._loop = self._loop, None
            if not over.done() and loop is not None:
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(inside["stop"].set)

    async def _watch(self, forward: Callable[[str, str | None, Mapping[str, Any]], None], stop: asyncio.Event) -> None:
        registry = kopf.OperatorRegistry()
        async with connected(self._context) as api:

            @kopf.on.login(registry=registry)
            async def login(**_: Any) -> kopf.AiohttpSession:
                # kopf closes the session it is given when it wants another one.
                return kopf.AiohttpSession(server=api.credentials.server, aiohttp_session=api.another_session())

            async def seen(event: kopf.RawEvent, resource: kopf.Resource, **_: Any) -> None:
                forward(resource.plural, event["type"], event["object"])

            for plural in self._served:
                kopf.on.event(GROUP, VERSION, plural, registry=registry)(seen)

            await kopf.operator(
                registry=registry,
                settings=settings(),
                standalone=True,
                clusterwide=not self._namespaces,
                namespaces=self._namespaces,
                stop_flag=stop,
            )


def settings() -> kopf.OperatorSettings:
    """Return kopf's settings for an operator that writes nothing through kopf and outlives its API server."""
    for name, level in (("kopf", logging.WARNING), ("kopf._core.reactor.running", logging.ERROR)):
        logging.getLogger(name).setLevel(level)
    chosen = kopf.OperatorSettings()
    chosen.posting.enabled = False
    chosen.scanning.disabled = True
    chosen.queueing.idle_timeout = 0.1
    chosen.queueing.exit_timeout = 1.0
    chosen.watching.server_timeout = SERVER_SECONDS + random.randrange(60)  # noqa: S311 -- jitter
    chosen.watching.connect_timeout = 5.0
    chosen.watching.chunk_size = 500
    chosen.networking.connect_timeout = 5.0
    chosen.networking.request_timeout = 30.0
    chosen.networking.error_backoffs = Backoffs()
    chosen.networking.enforce_retry_after = True
    chosen.persistence.diffbase_storage = _NoDiffBase()
    chosen.persistence.progress_storage = _NoProgress()
    return chosen


class Backoffs:
    """Seconds between two tries of one request: growing, jittered, without end."""

    def __iter__(self) -> Iterator[float]:
        delay = 0.2
        while True:
            yield delay * random.uniform(0.5, 1.0)  # noqa: S311
            delay = min(MAX_BACKOFF_SECONDS, delay * 2)


class _NoDiffBase(kopf.DiffBaseStorage):
    """Stores no former state of an object: no handler asks what changed."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None


class _NoProgress(kopf.ProgressStorage):
    """Stores no progress of handlers: no handler makes any."""

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None

    def purge(self, **_: Any) -> None:
        return None

    def touch(self, **_: Any) -> None:
        return None

    def clear(self, *, essence: Any) -> Any:
        return essence
