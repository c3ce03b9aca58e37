"""Sanitizes what users' programs wrote: finite numbers, bounded texts without control characters, bounded lists.

Well-formed reports of ranks and GPUs are decoded at once, all others field by field. Both give the same result; the
first costs a fraction, and nearly all reports are well-formed.
"""

import contextlib
import functools
import math
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, TypeVar, get_args

import msgspec
from msgspec import Meta, Raw, Struct

from torchyard.api.formatting import ESCAPES
from torchyard.api.status import MAX_METRICS, MAX_WARNINGS, Artifact, Batch, NonFinite, NonFiniteMetric
from torchyard.reconcile.observed import Failure, GpuReport, InputReport, RankReport, RequirementsReport, RoundExit

MAX_REPORTS = 256
MAX_GPUS = 64
MAX_NOTICES = 16
MAX_INPUTS = 16
MAX_CODES = 8
MAX_LINES = 20
MAX_LINES_CHARACTERS = 4096
MAX_LINE = 512
MAX_WORD = 128
MAX_DEVICE = 64
MAX_ARTIFACTS = 16
# Python integers are unbounded; a status field has 64 bits.
MAX_INTEGER = 2**63 - 1
NON_FINITE = frozenset(get_args(NonFinite))

_TEXTS_AND_LISTS = (
    "metrics",
    "non_finite_metrics",
    "throughput",
    "checkpoint",
    "batch",
    "warnings",
    "artifacts",
    "phase",
    "device",
)

S = TypeVar("S", bound=Struct)

_DIGEST = re.compile("[0-9a-f]{64}")

_CONTROL = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0))) | dict.fromkeys((*b"\t\n\v\f", 0x2028, 0x2029), " ")


def line(text: object, limit: int = MAX_LINE) -> str:
    """Return one line of at most `limit` characters without colours and control characters."""
    if isinstance(text, str) and len(text) <= limit and text.isprintable():
        return text
    return ESCAPES.sub("", text[: 4 * limit]).translate(_CONTROL)[:limit] if isinstance(text, str) else ""


def numbers(values: object) -> dict[str, float]:
    """Return the first `MAX_METRICS` finite numbers, by name."""
    if not isinstance(values, dict):
        return {}
    kept: dict[str, float] = {}
    for name, value in values.items():
        if len(kept) == MAX_METRICS:
            break
        clean = line(name, 64)
        if clean and _finite(value):
            kept[clean] = float(value)
    return kept


def report(raw: object) -> RankReport | None:
    """Return one rank's report; None if round, rank or step is missing."""
    if not isinstance(raw, dict) or not all(_whole(raw.get(name)) for name in ("round", "rank", "step")):
        return None
    read = _fields(raw, RankReport, without=_TEXTS_AND_LISTS)
    return msgspec.structs.replace(
        read,
        phase=line(raw.get("phase"), 32),
        device=line(raw.get("device"), MAX_DEVICE),
        metrics=numbers(raw.get("metrics")),
        non_finite_metrics=non_finite_metrics(raw.get("nonFiniteMetrics")),
        throughput=numbers(raw.get("throughput")),
        checkpoint=checkpoint(raw.get("checkpoint")),
        batch=batch(raw.get("batch")),
        warnings=_lines(raw.get("warnings"), MAX_WARNINGS),
        artifacts=artifacts(raw.get("artifacts")),
    )


def non_finite_metrics(values: object) -> dict[str, NonFiniteMetric]:
    """Return the first `MAX_METRICS` metrics that are not finite, by name."""
    read: dict[str, NonFiniteMetric] = {}
    for name, entry in values.items() if isinstance(values, dict) else ():
        if len(read) == MAX_METRICS:
            break
        clean = line(name, 64)
        if clean and isinstance(entry, dict) and entry.get("value") in NON_FINITE and _whole(entry.get("step")):
            read[clean] = NonFiniteMetric(value=entry["value"], step=int(entry["step"]))
    return read


def digests(raw: object) -> tuple[str, ...]:
    """Return the SHA-256 digests of a list."""
    return (
        tuple(each for each in raw[:MAX_CODES] if isinstance(each, str) and _DIGEST.fullmatch(each))
        if isinstance(raw, list)
        else ()
    )


def checkpoint(raw: object) -> dict[str, Any] | None:
    """Return the newest checkpoint of a report; None if its step is missing."""
    if not isinstance(raw, dict) or not _whole(raw.get("step")):
        return None
    known = {name: raw[name] for name in ("step", "bytes") if _whole(raw.get(name))}
    known |= {name: raw[name] for name in ("time", "saveSeconds") if _finite(raw.get(name))}
    return known | {"path": line(raw.get("path"), 1024)}


def batch(raw: object) -> Batch | None:
    """Return how a step is divided; None if one of its numbers is missing."""
    if not isinstance(raw, dict):
        return None
    found: list[Any] = [raw.get(name) for name in ("perProcess", "global", "accumulation")]
    if not all(map(_whole, found)):
        return None
    each, whole, passes = map(int, found)
    return Batch(per_process=each, whole=whole, accumulation=passes)


def artifacts(raw: object) -> tuple[Artifact, ...]:
    """Return the artifacts of a report; those without a name or with a repeated name are dropped."""
    named: dict[str, Artifact] = {}
    for each in raw[:MAX_ARTIFACTS] if isinstance(raw, list) else ():
        if isinstance(each, dict) and (name := line(each.get("name"), MAX_WORD)):
            size = each.get("bytes")
            named[name] = Artifact(
                name=name,
                uri=line(each.get("uri"), 1024),
                sha256=line(each.get("sha256"), 64),
                bytes=int(size) if isinstance(size, int) and _whole(size) else None,
                verified=verified if isinstance(verified := each.get("verified"), bool) else None,
            )
    return tuple(named.values())


def round_exit(raw: object) -> RoundExit | None:
    """Return how a round ended; None if round or code is missing."""
    if not isinstance(raw, dict) or not all(_whole(raw.get(name)) for name in ("round", "code")):
        return None
    read = _fields(raw, RoundExit, without=("failure", "lines", "answer"))
    answer = line(raw.get("answer"), 32)
    failure, lines_ = _failure(raw.get("failure")), _last_lines(raw.get("lines"))
    return msgspec.structs.replace(read, failure=failure, lines=lines_, answer=answer)


def gpu(raw: object) -> GpuReport | None:
    """Return one GPU of a pod."""
    if not isinstance(raw, dict):
        return None
    read = _fields(raw, GpuReport, without=("uuid", "product"))
    names = {"uuid": line(raw.get("uuid"), MAX_WORD), "product": line(raw.get("product"), MAX_WORD)}
    return msgspec.structs.replace(read, **names)


def inputs(raw: Iterable[object]) -> tuple[InputReport, ...]:
    """Return the inputs of a pod; those without a name are dropped."""
    return tuple(read for one in list(raw)[:MAX_INPUTS] if (read := _input(one)) is not None)


def _input(raw: object) -> InputReport | None:
    if not isinstance(raw, dict) or not (name := line(raw.get("name"), 64)):
        return None
    texts = {field: line(raw.get(field), MAX_WORD) for field in ("state", "revision")}
    read = _fields(raw, InputReport, without=("name", "message", *texts))
    return msgspec.structs.replace(read, name=name, message=line(raw.get("message"), 200), **texts)


def requirements(raw: object) -> RequirementsReport | None:
    """Return the packages of a pod; None: nothing is installed for its code."""
    if not isinstance(raw, dict):
        return None
    read = _fields(raw, RequirementsReport, without=("state", "message"))
    texts = {"state": line(raw.get("state"), MAX_WORD), "message": line(raw.get("message"), 200)}
    return msgspec.structs.replace(read, **texts)


def notices(raw: Iterable[object]) -> tuple[str, ...]:
    """Return the notices of the agent."""
    return _lines(list(raw), MAX_NOTICES)


def _fields(raw: dict[Any, Any], type_: type[S], without: tuple[str, ...]) -> S:
    """Return the struct with every readable plain field; the others keep their default."""
    known = {
        encoded: value
        for name, encoded, _ in _table(type_)
        if name not in without and (value := raw.get(encoded)) is not None
    }
    if all(map(_is_number_or_flag, known.values())):
        # Well-formed input is converted at once: the other path costs ten times as much.
        with contextlib.suppress(msgspec.ValidationError):
            return msgspec.convert(known, type_)
    return type_(
        **{
            name: value
            for name, encoded, kind in _table(type_)
            if (value := _read(known.get(encoded), kind)) is not None
        }
    )


@functools.cache
def _table(type_: type[Struct]) -> tuple[tuple[str, str, Any], ...]:
    """Return name, encoded name and type of each field."""
    return tuple((field.name, field.encode_name, field.type) for field in msgspec.structs.fields(type_))


def _is_number_or_flag(value: object) -> bool:
    return _finite(value) if isinstance(value, int | float) and not isinstance(value, bool) else isinstance(value, bool)


def _read(value: object, kind: Any) -> Any:
    """Return the value in the type of its field; None if it cannot be converted."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    try:
        read = msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError:
        return None
    if isinstance(read, str):
        return line(read)
    return read if isinstance(read, bool) or _finite(read) else None


def _failure(raw: object) -> Failure | None:
    if not isinstance(raw, dict):
        return None
    read = _fields(raw, Failure, without=("exception", "message", "phase"))
    exception, message = line(raw.get("exception"), MAX_WORD), line(raw.get("message"), 2 * MAX_LINE)
    if "exitCodeOnly" not in raw:  # an agent of an earlier version, whose message is then "exit code 1"
        read = msgspec.structs.replace(read, exit_code_only=not exception and message.startswith("exit code "))
    return msgspec.structs.replace(read, exception=exception, message=message, phase=line(raw.get("phase"), 32))


def _last_lines(raw: object) -> tuple[str, ...]:
    """Return the newest lines whose total length is within the limit, in order."""
    kept: list[str] = []
    room = MAX_LINES_CHARACTERS
    for text in reversed(raw[-MAX_LINES:] if isinstance(raw, list) else []):
        clean = line(text)
        room -= len(clean)
        if room < 0:
            break
        kept.append(clean)
    return tuple(reversed(kept))


def _lines(raw: object, most: int) -> tuple[str, ...]:
    return tuple(clean for text in (raw[:most] if isinstance(raw, list) else []) if (clean := line(text)))


def _finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= MAX_INTEGER if isinstance(value, int) else math.isfinite(value)


def _whole(value: object) -> bool:
    """Return whether it is a whole number that fits a status field; floats only in the range where they are exact."""
    if isinstance(value, float):
        return value.is_integer() and 0 <= value <= 2**53
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_INTEGER


Decoded = TypeVar("Decoded")
Whole = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
Integer = Annotated[int, Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)]
Name = Annotated[str, Meta(min_length=1, max_length=64)]
Numbers = Annotated[dict[Name, float], Meta(max_length=MAX_METRICS)]
Warnings = Annotated[list[Annotated[str, Meta(min_length=1, max_length=MAX_LINE)]], Meta(max_length=MAX_WARNINGS)]
Word = Annotated[str, Meta(max_length=MAX_WORD)]


class _NonFinite(Struct):
    value: NonFinite
    step: Whole


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
    window_steps: Integer | None = None
    step_seconds: float | None = None
    compute_seconds: float | None = None
    compute_low_seconds: float | None = None
    metrics: Numbers = {}
    non_finite_metrics: Annotated[dict[Name, _NonFinite], Meta(max_length=MAX_METRICS)] = {}
    throughput: Numbers = {}
    checkpoint: dict[str, int | float | str | None] | None = None
    batch: dict[str, int | float | str | None] | None = None
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
        read for one in raw[:MAX_REPORTS] if (read := well_formed_report(one) or report(_anything(one))) is not None
    )


def gpus(raw: Sequence[Raw]) -> tuple[GpuReport, ...]:
    """Return the GPUs of a pod."""
    return tuple(read for one in raw[:MAX_GPUS] if (read := well_formed_gpu(one) or gpu(_anything(one))) is not None)


def well_formed_report(raw: Raw) -> RankReport | None:
    """Return one rank's report; None if it is not well-formed."""
    read = _decoded(_REPORT, raw)
    if read is None:
        return None
    if not (
        read.phase.isprintable()
        and all(
            map(
                str.isprintable,
                (read.device, *read.metrics, *read.non_finite_metrics, *read.throughput, *read.warnings),
            )
        )
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
        window_steps=read.window_steps,
        step_seconds=read.step_seconds,
        compute_seconds=read.compute_seconds,
        compute_low_seconds=read.compute_low_seconds,
        metrics=read.metrics,
        non_finite_metrics={
            name: NonFiniteMetric(value=each.value, step=each.step) for name, each in read.non_finite_metrics.items()
        },
        throughput=read.throughput,
        checkpoint=checkpoint(read.checkpoint),
        batch=batch(read.batch),
        warnings=tuple(read.warnings),
        artifacts=artifacts(read.artifacts),
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


def _decoded(decoder: "msgspec.json.Decoder[Decoded]", raw: Raw) -> Decoded | None:
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _anything(raw: Raw) -> Any:
    return _decoded(_ANYTHING, raw)


_ANYTHING = msgspec.json.Decoder(Any)
_REPORT = msgspec.json.Decoder(_Report)
_GPU = msgspec.json.Decoder(_Gpu)
