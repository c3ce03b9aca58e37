"""The curves of a job, and where they come from: its files, or the few points that its status keeps."""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from torchyard.api.curves import buckets_of
from torchyard.api.status import Attempt, TrainingJobStatus
from torchyard.client.followed import FOLLOWED
from torchyard.client.histories import Curve, Histories, curve, histories_of

Source = Literal["files", "copy", "status"]
SENTENCES: dict[Source, str] = {
    "files": "every logged value",
    "copy": "the values that were read before; no pod runs to read newer ones from",
    "status": "the values that statuses were written with, about one every ten seconds; extremes between are missing",
}
Scale = Literal["fine", "overview", "log"]


class Curves(Struct, frozen=True, kw_only=True):
    """Curves of a job.

    Attributes:
        source: `files`: `metrics.jsonl`; `copy`: what this machine has read of it before; `status`: the status.
        metrics: buckets of each metric by name.
        left_out: number of metrics that are not in `metrics`, since there are too many.
        note: why no better source was read; empty if there is none.
        rounds: of the job, as far as its status has them, for axes of time.
    """

    source: Source
    metrics: Mapping[str, Curve]
    left_out: int = 0
    note: str = ""
    rounds: Sequence[Attempt] = ()

    @property
    def sentence(self) -> str:
        """What the curves show, in words."""
        return SENTENCES[self.source] + (f" ({self.note})" if self.note else "")


def of_file(path: Path, names: Iterable[str] | None, scale: Scale, status: TrainingJobStatus) -> Curves:
    """Return the curves of a checkpoint folder; those of the status if it has none.

    Raises:
        TorchYardError: the file cannot be read.
    """
    return stored(path, names, scale, status) or of_status(status, names)


def stored(
    path: Path,
    names: Iterable[str] | None,
    scale: Scale,
    status: TrainingJobStatus,
    *,
    source: Source = "files",
    note: str = "",
) -> Curves | None:
    """Return the curves of a file; None: it has no row.

    Raises:
        TorchYardError: the file cannot be read.
    """
    if names is not None:
        return of_histories(histories_of(path, names), scale, status, source, note)
    with FOLLOWED.read(path) as read:
        return of_histories(read, scale, status, source, note)


def of_histories(
    read: Histories, scale: Scale, status: TrainingJobStatus, source: Source = "files", note: str = ""
) -> Curves | None:
    """Return the curves of a file; None: it has no row."""
    if not read.rows:
        return None
    metrics = {name: curve(series.levels[scale]) for name, series in read.series.items()}
    return Curves(source=source, metrics=metrics, left_out=read.left_out, note=note, rounds=status.attempts)


def of_status(status: TrainingJobStatus, names: Iterable[str] | None = None, note: str = "") -> Curves:
    """Return the curves of a status (pure)."""
    wanted = status.curves.keys() if names is None else status.curves.keys() & set(names)
    metrics = {}
    for name in sorted(wanted):
        width, buckets = status.curves[name].width, buckets_of(status.curves[name])
        reals = zip(*((each.mean, each.low, each.high) for each in buckets), strict=True)
        mean, low, high = (array("d", column) for column in reals) if buckets else (array("d"),) * 3
        metrics[name] = Curve(
            first=array("d", (each.key * width for each in buckets)),
            last=array("d", (min(each.key * width + width - 1, max(status.progress.step, each.key * width))
                             for each in buckets)),
            mean=mean, low=low, high=high,
            finite=array("I", (each.finite for each in buckets)),
            bad=array("I", (each.bad for each in buckets)),
        )  # fmt: skip
    return Curves(source="status", metrics=metrics, note=note, rounds=status.attempts)
