"""What each rank of a run last reported, read from the files its workers write."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

MAX_REPORT_BYTES = 64 * 1024


class Rank(NamedTuple):
    """One rank of the newest round."""

    rank: int
    pod: str
    node: str
    phase: str
    step: int
    lag: int  # steps behind the foremost rank
    seen: float  # unix seconds of its newest report


def read_ranks(run: Path, round_number: int) -> tuple[Rank, ...]:
    """The ranks of round `round_number` in rank order; a report that cannot be read is left out."""
    found: dict[int, Rank] = {}
    for pod, report in reports(run / "pods"):
        rank, step = report.get("rank"), report.get("step")
        if report.get("round") != round_number or not isinstance(rank, int) or not isinstance(step, int):
            continue
        seen = report.get("time")
        found[rank] = Rank(
            rank,
            str(pod.get("name", "")),
            f"local-{pod.get('index', '?')}",
            str(report.get("phase", "")),
            step,
            0,
            float(seen) if isinstance(seen, int | float) else 0.0,
        )
    foremost = max((rank.step for rank in found.values()), default=0)
    return tuple(found[number]._replace(lag=foremost - found[number].step) for number in sorted(found))


def reports(pods: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(pod.json, report.<local_rank>.json) of every worker that ever wrote a report."""
    for folder in sorted(pods.glob("*/")):
        pod = {"name": folder.name, **small_json(folder / "pod.json")}
        for path in sorted(folder.glob("run/report.*.json")):
            yield pod, small_json(path)


def small_json(path: Path) -> dict[str, Any]:
    """The object in a small JSON file; empty when the file is absent, being made, too large or something else."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size > MAX_REPORT_BYTES:
                return {}
            value = json.loads(file.read(MAX_REPORT_BYTES))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
