"""Health and readiness for the kubelet, over plain HTTP; the metrics of the operator."""

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

from aiohttp import web
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_1_0_0
from prometheus_client.registry import Collector

_PATH = re.compile(
    r"^/(?:api/[^/]+|apis/[^/]+/[^/]+)(?:/namespaces/[^/]+(?=/.))?/(?P<resource>[^/]+)(?:/[^/]+(?:/(?P<sub>[^/]+))?)?$"
)
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Readiness:
    """What keeps this process from being ready, one sentence for each cause."""

    def __init__(self, causes: Mapping[str, str]) -> None:
        self._causes = dict(causes)

    def set(self, name: str, sentence: str = "") -> None:
        """Set why `name` is not ready; an empty sentence: it is."""
        self._causes[name] = sentence

    @property
    def sentences(self) -> list[str]:
        """Why this process is not ready; empty if it is."""
        return [f"{name}: {sentence}" for name, sentence in self._causes.items() if sentence]


class Metrics:
    """Counters of the operator.

    Args:
        jobs: how many jobs are in which state now.
        depth: how many jobs are queued now.
        leading: whether this process leads now.
        counts: further totals since the start by name, `torchyard_..._total`.
    """

    def __init__(
        self,
        *,
        jobs: Callable[[], Mapping[str, int]],
        depth: Callable[[], int],
        leading: Callable[[], bool],
        counts: Callable[[], Iterable[tuple[str, str, float]]] = lambda: (),
    ) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call] # a second series for every counter, which is not read
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self._requests = Counter(
            "torchyard_api_requests",
            "Requests to the API server; code 0: no answer.",
            ("verb", "resource", "code"),
            registry=self.registry,
        )
        self._looks = Counter(
            "torchyard_reconciles", "Looks at jobs, by how they ended.", ("result",), registry=self.registry
        )
        self._seconds = Histogram(
            "torchyard_reconcile_seconds", "Seconds of a look at a job.", buckets=SECONDS, registry=self.registry
        )
        Gauge("torchyard_workqueue_depth", "Jobs that wait for a look.", registry=self.registry).set_function(depth)
        Gauge("torchyard_leader", "1 while this process leads.", registry=self.registry).set_function(leading)
        self.registry.register(_Now(jobs, counts))

    def requested(self, verb: str, path: str, code: int) -> None:
        """Count a request to the API server."""
        self._requests.labels(verb, resource(path), str(code)).inc()

    def looked(self, result: str, seconds: float) -> None:
        """Count a reconcile of a job."""
        self._looks.labels(result).inc()
        self._seconds.observe(seconds)


class _Now(Collector):
    """Metrics that are read at each scrape."""

    def __init__(
        self, jobs: Callable[[], Mapping[str, int]], counts: Callable[[], Iterable[tuple[str, str, float]]]
    ) -> None:
        self._jobs, self._counts = jobs, counts

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily("torchyard_jobs", "Jobs by state.", labels=("state",))
        for state, number in self._jobs().items():
            family.add_metric((state,), number)
        yield family
        for name, text, value in self._counts():
            if name.endswith("_total"):
                yield CounterMetricFamily(name, text, value)
            else:
                yield GaugeMetricFamily(name, text, value)


def resource(path: str) -> str:
    """Return the resource of a path of the API server: `pods`, `trainingjobs/status`; names would be unbounded."""
    found = _PATH.match(path)
    if found is None:
        return "other"
    return f"{found['resource']}/{found['sub']}" if found["sub"] else found["resource"]


def application(
    readiness: Readiness,
    stuck: Callable[[], Awaitable[str]],
    open_metrics: Callable[[], Awaitable[bytes]] | None = None,
) -> web.Application:
    """Return the pages that everybody may read.

    Args:
        readiness: of `/readyz`.
        open_metrics: writes `/metrics`, for development; None: the page does not exist here.
        stuck: why only a restart helps; empty: nothing does. An answer of this page proves that its own loop turns.
    """

    async def healthz(_request: web.Request) -> web.Response:
        why = await stuck()
        return web.Response(status=503 if why else 200, text=f"{why or 'ok'}\n")

    async def readyz(_request: web.Request) -> web.Response:
        sentences = readiness.sentences
        return web.Response(status=503 if sentences else 200, text="\n".join(sentences or ["ok"]) + "\n")

    async def metrics(_request: web.Request) -> web.Response:
        assert open_metrics is not None
        return web.Response(body=await open_metrics(), headers={"Content-Type": CONTENT_TYPE_PLAIN_1_0_0})

    app = web.Application(client_max_size=1024)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    if open_metrics is not None:
        app.router.add_get("/metrics", metrics)
    return app
