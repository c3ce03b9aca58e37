"""Series of single jobs on /metrics: of a bounded number of jobs, from the leader alone, while a job lives.

The jobs are frozen values, so another thread writes the page while the event loop goes on. A job that is over keeps its
series for a few minutes: Prometheus reads its last values, and an alert can name a job that failed.
"""

import asyncio
import heapq
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from torchyard.api.resource import TrainingJob
from torchyard.api.status import State, newest_values

LAST_SECONDS = 300.0
"""How long a job that is over keeps its series: two scrapes of any usual interval."""
LABELS = ("job_namespace", "job_name")
_WAITING = {State.NEW, State.PENDING, State.QUEUED, State.SUSPENDED}

Value = Callable[[TrainingJob], float | None]


class JobMetrics:
    """The part of /metrics about single jobs.

    Args:
        jobs: of the cluster; read again for each page.
        leading: whether this process leads; of several replicas only one has these series.
        limit: number of jobs with series; 0: none.
        clock: unix seconds.
    """

    def __init__(
        self,
        jobs: Iterable[TrainingJob],
        leading: Callable[[], bool],
        limit: int,
        clock: Callable[[], float],
    ) -> None:
        self._jobs, self._leading, self._limit, self._clock = jobs, leading, limit, clock

    async def page(self) -> bytes:
        """Return these series in the text format of Prometheus, without blocking the event loop."""
        if not self._limit or not self._leading():
            return b""
        chosen, left_out = with_series(self._jobs, self._limit, self._clock())
        return await asyncio.to_thread(_written, chosen, left_out)


def with_series(jobs: Iterable[TrainingJob], limit: int, now: float) -> tuple[list[TrainingJob], int]:
    """Return the jobs that get series, and the number of those that the limit leaves out (pure).

    Jobs that hold pods come first, then those that wait, then those that are over; of each the oldest first, so that a
    job does not lose its series because another one was created.
    """
    current = [job for job in jobs if now - (job.status.completion_time or now) < LAST_SECONDS]
    return heapq.nsmallest(limit, current, key=_rank), max(0, len(current) - limit)


def _rank(job: TrainingJob) -> tuple[int, float, str, str]:
    state = job.status.state
    group = 2 if state.terminal else 1 if state in _WAITING else 0
    return group, float(job.metadata.creation_timestamp or 0.0), *job.key


def _written(jobs: list[TrainingJob], left_out: int) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Series(jobs, left_out))
    return generate_latest(registry)


class _Series(Collector):
    def __init__(self, jobs: list[TrainingJob], left_out: int) -> None:
        self._jobs, self._left_out = jobs, left_out

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        sentence = "Jobs without series of their own, because more than --job-series have any."
        yield GaugeMetricFamily("torchyard_jobs_without_series", sentence, self._left_out)
        info = GaugeMetricFamily(
            "torchyard_job_info", "1; state and reason of a job.", labels=(*LABELS, "state", "reason")
        )
        for job in self._jobs:
            state = job.status.state or State.PENDING
            info.add_metric((*job.key, state.value, str(job.status.reason)), 1.0)
        yield info
        for name, sentence, value in SERIES:
            family: Metric
            add: Callable[..., None]
            if name.endswith("_total"):
                family = counter = CounterMetricFamily(name, sentence, labels=LABELS)
                add = counter.add_metric
            else:
                family = gauge = GaugeMetricFamily(name, sentence, labels=LABELS)
                add = gauge.add_metric
            for job in self._jobs:
                if (figure := value(job)) is not None:
                    add(job.key, float(figure))
            yield family


def _share(percent: float | None) -> float | None:
    return None if percent is None else percent / 100.0


def _goodput(job: TrainingJob) -> float | None:
    return None if job.status.goodput is None else _share(job.status.goodput.percent)


def _checkpoint_time(job: TrainingJob) -> float | None:
    return None if job.status.checkpoint is None else job.status.checkpoint.time


def _at_risk(job: TrainingJob) -> float | None:
    return None if job.status.checkpoint is None else job.status.checkpoint.steps_at_risk


def _running(value: Value) -> Value:
    """Return a figure that a job has only while it trains: the last one of a job that waits is no rate."""
    return lambda job: value(job) if job.status.state == State.RUNNING else None


SERIES: tuple[tuple[str, str, Value], ...] = (
    ("torchyard_job_progress_ratio", "Share of the steps done.", lambda job: _share(job.status.progress.percent)),
    ("torchyard_job_step", "Newest optimizer step.", lambda job: job.status.progress.step),
    (
        "torchyard_job_last_step_timestamp_seconds",
        "When the newest step was reported.",
        _running(lambda job: job.status.progress.last_step_time),
    ),
    ("torchyard_job_eta_seconds", "Seconds left.", _running(lambda job: job.status.progress.eta_seconds)),
    (
        "torchyard_job_stalled",
        "1: no step for unusually long.",
        _running(lambda job: job.status.progress.stalled),
    ),
    ("torchyard_job_loss", "Newest loss.", lambda job: newest_values(job.status).get("loss")),
    ("torchyard_job_reward", "Newest mean reward.", lambda job: newest_values(job.status).get("reward")),
    (
        "torchyard_job_non_finite_metrics",
        "Metrics whose newest value is NaN or infinite.",
        lambda job: len(job.status.non_finite_metrics),
    ),
    (
        "torchyard_job_steps_per_second",
        "Optimizer steps a second.",
        _running(lambda job: job.status.throughput.steps_per_second),
    ),
    (
        "torchyard_job_samples_per_second",
        "Samples a second.",
        _running(lambda job: job.status.throughput.samples_per_second),
    ),
    (
        "torchyard_job_tokens_per_second",
        "Tokens a second.",
        _running(lambda job: job.status.throughput.tokens_per_second),
    ),
    ("torchyard_job_mfu_ratio", "Model FLOP utilisation.", _running(lambda job: job.status.throughput.mfu)),
    ("torchyard_job_goodput_ratio", "Share of wall time that made steps which survived.", _goodput),
    ("torchyard_job_gpus", "GPUs seen by the agents.", _running(lambda job: job.status.gpus.count)),
    (
        "torchyard_job_gpu_utilization_ratio",
        "Share of time in which a kernel ran, mean of the GPUs.",
        _running(lambda job: _share(job.status.gpus.utilization)),
    ),
    (
        "torchyard_job_gpu_memory_used_bytes",
        "Used memory of all GPUs.",
        _running(lambda job: job.status.gpus.memory_used_bytes),
    ),
    ("torchyard_job_gpu_seconds_total", "GPU seconds held.", lambda job: job.status.gpu_seconds),
    ("torchyard_job_restarts_total", "Rounds opened because one failed.", lambda job: job.status.restarts.total),
    ("torchyard_job_nodes_desired", "Pods of the gang.", lambda job: job.status.nodes.desired),
    ("torchyard_job_nodes_ready", "Pods whose agent is ready.", lambda job: job.status.nodes.ready),
    ("torchyard_job_checkpoint_timestamp_seconds", "When the newest checkpoint was complete.", _checkpoint_time),
    ("torchyard_job_steps_at_risk", "Steps that a failure now would lose.", _running(_at_risk)),
)
"""Name, description and figure of each; None: the job has none."""
