"""Reports of ranks and GPUs. Well-formed ones are decoded at once, all others by `sanitise`.

Both paths give the same result; the first costs a fraction, and nearly all reports are well-formed.
"""

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from torchyard.agents import sanitize
from torchyard.agents.sanitize import MAX_DEVICE, MAX_GPUS, MAX_INTEGER, MAX_LINE, MAX_REPORTS, MAX_WORD
from torchyard.api.status import MAX_METRICS, MAX_WARNINGS
from torchyard.reconcile.view import GpuReport, RankReport

S = TypeVar("S")
Whole = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
Integer = Annotated[int, Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)]
Name = Annotated[str, Meta(min_length=1, max_length=64)]
Numbers = Annotated[dict[Name, float], Meta(max_length=MAX_METRICS)]
Warnings = Annotated[list[Annotated[str, Meta(min_length=1, max_length=MAX_LINE)]], Meta(max_length=MAX_WARNINGS)]
Word = Annotated[str, Meta(max_length=MAX_WORD)]


class _Report(Struct, rename="camel"):
    round: Whole
    rank: Whole
    step: Whole
    local_rank: Integer = 0
    counter: Integer = 0
    time: float = 0.0
    total_steps: Integer | None = None
    round_steps: Integer | None = None
    epoch: float | None = None
    phase: Annotated[str, Meta(max_length=32)] = ""
    phase_since: float = 0.0
    still_seconds: float = 0.0
    device: Annotated[str, Meta(max_length=MAX_DEVICE)] = ""
    from_start: bool = False
    alone_seconds: float | None = None
    metrics: Numbers = {}
    throughput: Numbers = {}
    checkpoint: dict[str, int | float | str | None] | None = None
    warnings: Warnings = []
    artifacts: list[Any] = []


class _Gpu(Struct, rename="camel"):
    uuid: Word = ""
    index: Integer = 0
    product: Word = ""
    memory_total_bytes: Integer = 0
    memory_used_bytes: Integer = 0
    utilization: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None


def reports(raw: Sequence[Raw]) -> tuple[RankReport, ...]:
    """Return the readable reports."""
    return tuple(
        read
        for one in raw[:MAX_REPORTS]
        if (read := well_formed_report(one) or sanitize.report(_anything(one))) is not None
    )


def gpus(raw: Sequence[Raw]) -> tuple[GpuReport, ...]:
    """Return the GPUs of a pod."""
    return tuple(
        read for one in raw[:MAX_GPUS] if (read := well_formed_gpu(one) or sanitize.gpu(_anything(one))) is not None
    )


def well_formed_report(raw: Raw) -> RankReport | None:
    """Return one rank's report; None if it is not well-formed."""
    read = _decoded(_REPORT, raw)
    if read is None:
        return None
    if not (
        read.phase.isprintable()
        and all(map(str.isprintable, (read.device, *read.metrics, *read.throughput, *read.warnings)))
    ):
        return None
    return RankReport(
        round=read.round,
        rank=read.rank,
        local_rank=read.local_rank,
        counter=read.counter,
        time=read.time,
        step=read.step,
        total_steps=read.total_steps,
        round_steps=read.round_steps,
        epoch=read.epoch,
        phase=read.phase,
        phase_since=read.phase_since,
        still_seconds=read.still_seconds,
        device=read.device,
        from_start=read.from_start,
        alone_seconds=read.alone_seconds,
        metrics=read.metrics,
        throughput=read.throughput,
        checkpoint=sanitize.checkpoint(read.checkpoint),
        warnings=tuple(read.warnings),
        artifacts=sanitize.artifacts(read.artifacts),
    )


def well_formed_gpu(raw: Raw) -> GpuReport | None:
    """Return one GPU; None if it is not well-formed."""
    read = _decoded(_GPU, raw)
    if read is None or not (read.uuid.isprintable() and read.product.isprintable()):
        return None
    return GpuReport(
        uuid=read.uuid,
        index=read.index,
        product=read.product,
        memory_total_bytes=read.memory_total_bytes,
        memory_used_bytes=read.memory_used_bytes,
        utilization=read.utilization,
        temperature_c=read.temperature_c,
        power_w=read.power_w,
    )


def _decoded(decoder: "msgspec.json.Decoder[S]", raw: Raw) -> S | None:
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _anything(raw: Raw) -> Any:
    return _decoded(_ANYTHING, raw)


_ANYTHING = msgspec.json.Decoder(Any)
_REPORT = msgspec.json.Decoder(_Report)
_GPU = msgspec.json.Decoder(_Gpu)
