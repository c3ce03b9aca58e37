"""What each rank of a run last reported, read from the files its workers write.

The status is written every `spec.metrics.interval`; these files are at most a second old, so that a view on the same
machine is lively.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from torchyard.api.files import read_regular
from torchyard.api.formatting import clean
from torchyard.api.resource import TrainingJob
from torchyard.api.status import Attempt
from torchyard.reconcile.observed import RankReport
from torchyard.reconcile.progress import newest_checkpoint

MAX_REPORT_BYTES = 64 * 1024
REPORT_SECONDS = 1.0  # what a report says may be so old when it is written


class Rank(NamedTuple):
    """One rank of the newest round."""

    rank: int
    pod: str
    node: str
    phase: str
    step: int
    lag: int  # steps behind the foremost rank, but for those it made since this one reported
    seen: float  # unix seconds of its newest report


class Reported(NamedTuple):
    """A report and where it comes from."""

    pod: str
    node: str
    report: RankReport


def read_reports(pods: Path, round_number: int) -> list[Reported]:
    """Return the reports of one round in rank order.

    Args:
        pods: folder with a folder a pod.
        round_number: of the round; reports of others are left out, and so are those that cannot be read.
    """
    found = {}
    for path in pods.glob("*/run/report.*.json"):
        report = _read(path)
        if report is not None and report.round == round_number:
            pod = path.parent.parent.name
            found[report.rank] = Reported(pod, f"local-{pod.rpartition('-')[2]}", report)
    return [found[rank] for rank in sorted(found)]


def ranks_of(reports: Sequence[Reported]) -> tuple[Rank, ...]:
    """Return one line for each rank."""
    reported = [each.report for each in reports]
    foremost = max(reported, key=lambda report: report.step, default=None)
    return tuple(
        Rank(report.rank, pod, node, report.phase, report.step, _lag(report, foremost or report), report.time)
        for pod, node, report in reports
    )


def _lag(report: RankReport, foremost: RankReport) -> int:
    """Return the steps that the foremost rank is ahead, less those it may have made since this rank reported."""
    rate = foremost.throughput.get("stepsPerSecond", 0.0)
    later = max(0.0, foremost.time - report.time) + REPORT_SECONDS
    return max(0, foremost.step - report.step - math.ceil(rate * later) - 1)


def freshen(job: TrainingJob, reports: Sequence[Reported]) -> TrainingJob:
    """Return the job with the figures and the newest checkpoint of the reports, if rank 0 is ahead of the status."""
    status = job.status
    if not reports or reports[0].report.rank != 0 or status.state.terminal:
        return job
    report = reports[0].report
    if report.step <= status.progress.step:
        return job
    total = report.total_steps or status.progress.total_steps
    rate = report.throughput.get("stepsPerSecond", status.throughput.steps_per_second)
    progress = msgspec.structs.replace(
        status.progress,
        step=report.step,
        total_steps=total,
        epoch=status.progress.epoch if report.epoch is None else report.epoch,
        percent=min(100.0, 100 * report.step / total) if total else None,
        eta_seconds=round(max(0, total - report.step) / rate) if total and rate else None,
        phase=report.phase or status.progress.phase,
    )
    throughput = msgspec.structs.replace(
        status.throughput,
        steps_per_second=rate,
        samples_per_second=report.throughput.get("samplesPerSecond", status.throughput.samples_per_second),
    )
    fresh = msgspec.structs.replace(
        status,
        progress=progress,
        metrics={
            name: value
            for name, value in {**status.metrics, **report.metrics}.items()
            if name not in report.non_finite_metrics
        },
        non_finite_metrics={
            name: each
            for name, each in {**status.non_finite_metrics, **report.non_finite_metrics}.items()
            if name not in report.metrics
        },
        throughput=throughput,
        checkpoint=newest_checkpoint([each.report for each in reports], status.checkpoint, report.step),
    )
    return msgspec.structs.replace(job, status=fresh)


def failing_rank(attempts: Sequence[Attempt]) -> int | None:
    """Rank of the first cause of the newest round that had one."""
    ranks = (attempt.cause.rank for attempt in reversed(attempts) if attempt.cause is not None)
    return next((rank for rank in ranks if rank is not None), None)


def _read(path: Path) -> RankReport | None:
    try:
        return msgspec.json.decode(read_regular(path, MAX_REPORT_BYTES), type=RankReport)
    except (OSError, msgspec.DecodeError, RecursionError):
        return None


NO_STACKS = "no stacks: it ended, or it is no Python that the agent's hooks are in"


class RankStacks(msgspec.Struct, frozen=True, kw_only=True):
    """The stack of a rank, as its agent reports it (docs/protocol.md)."""

    rank: int
    pid: int
    stacks: str | None = None
    at: str = ""  # innermost frame of the program itself
    waits: bool = False  # for other ranks
    pod: str = ""


def read(answer: bytes, pod: str) -> list[RankStacks]:
    """Return what the agent of a pod answered."""
    return [msgspec.structs.replace(each, pod=pod) for each in msgspec.json.decode(answer, type=list[RankStacks])]


def shown(rank: RankStacks) -> str:
    """Return one rank, as people read it."""
    where = f", at {rank.at}" if rank.at else ""
    head = f"rank {rank.rank} ({rank.pod}){where}" + (", waiting for other ranks" if rank.waits else "")
    lines = (rank.stacks or NO_STACKS).strip().splitlines()
    return "\n".join([clean(head), *map(clean, lines)])
