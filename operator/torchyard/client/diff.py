"""Compare two runs: specification, code, packages, machine and devices, result and final metrics."""

import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from msgspec import Struct

from torchyard.api.formatting import clean, clip
from torchyard.api.resource import TrainingJob
from torchyard.api.spec_code import is_sent, pinned_commit, source_of
from torchyard.api.values import figure
from torchyard.client.backend import Backend, Document
from torchyard.client.errors import TorchYardError

MAX_SHOWN = 120  # characters of a value
MAX_LINES = 200  # of the difference between two texts
MAX_COMPARED = 20_000  # lines of two texts: comparing takes time with their square
MAX_DEPTH = 12

Value = str | int | float | bool | None


class Difference(Struct, frozen=True, kw_only=True):
    """One difference between two runs. A value of None means that the run does not have it.

    Attributes:
        section: specification, code, inputs, packages, machine, result or metrics.
        name: of the field, file, package or metric.
        left: value in the first run; for code, the digest of the file.
        right: value in the second run.
        lines: for texts, the difference line by line.
    """

    section: str
    name: str
    left: Value
    right: Value
    lines: tuple[str, ...] = ()


class Comparison(Struct, frozen=True, kw_only=True):
    """The differences between two runs; `print` shows them.

    Attributes:
        left: name of the first run.
        right: name of the second run.
        differences: section by section.
        notes: what could not be compared, and why.
    """

    left: str
    right: str
    differences: tuple[Difference, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002 -- the protocol of IPython
        printer.text(str(self))

    def __bool__(self) -> bool:
        """Return whether anything differs."""
        return bool(self.differences)


class Side(NamedTuple):
    """The facts about one run that are compared."""

    job: TrainingJob
    document: Document
    record: Document | None
    """Return `environment.json`; None if it does not exist."""


def compare(left: Side, right: Side, notes: tuple[str, ...] = ()) -> Comparison:
    """Compare two runs (pure)."""
    found = [
        *_of_section("specification", _spec(left), _spec(right)),
        *_of_section("code", _code(left), _code(right)),
        *_of_section("inputs", _inputs(left), _inputs(right)),
        *_of_section("packages", _packages(left), _packages(right)),
        *_of_section("machine", _machine(left), _machine(right)),
        *_of_section("result", _result(left), _result(right)),
        *_of_section("metrics", _metrics(left), _metrics(right)),
    ]
    for each in (left, right):
        if each.record is None and not _same_environment(left, right):
            notes = (*notes, f"{each.job.metadata.name} has no record of its code and packages")
    names = left.job.metadata.name, right.job.metadata.name
    return Comparison(left=names[0], right=names[1], differences=tuple(found), notes=tuple(dict.fromkeys(notes)))


async def sides(name: str, backend: Backend, other_name: str, other: Backend) -> tuple[Side, Side, tuple[str, ...]]:
    """Read two runs; records whose digests in the statuses are equal are not fetched.

    Raises:
        NotFoundError: there is no such run.
    """
    kept = [await backend.get(name), await other.get(other_name)]
    digests = [each.job.status.environment for each in kept]
    notes: list[str] = []
    records: list[Document | None] = [None, None]
    if not digests[0] or digests[0] != digests[1]:
        for index, (called, where) in enumerate(((name, backend), (other_name, other))):
            try:
                records[index] = _decoded(await where.environment(called))
            except TorchYardError as error:
                notes.append(f"code and packages of {called} cannot be read: {error}")
    left, right = (Side(each.job, each.document, record) for each, record in zip(kept, records, strict=True))
    return left, right, tuple(notes)


def _decoded(data: bytes | None) -> Document | None:
    """Return a record; None if a program wrote something else in its place."""
    try:
        record = json.loads(data or b"null")
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _same_environment(left: Side, right: Side) -> bool:
    digests = left.job.status.environment, right.job.status.environment
    return bool(digests[0]) and digests[0] == digests[1]


def _of_section(section: str, left: Mapping[str, Value], right: Mapping[str, Value]) -> Iterator[Difference]:
    for name in dict.fromkeys([*left, *right]):
        one, two = left.get(name), right.get(name)
        if one == two:
            continue
        texts = isinstance(one, str) and isinstance(two, str) and "\n" in one + two
        lines = tuple(_text_lines(str(one), str(two))) if texts else ()
        yield Difference(section=section, name=name, left=one, right=two, lines=lines)


def _text_lines(left: str, right: str) -> Iterator[str]:
    one, two = left.splitlines(), right.splitlines()
    if len(one) + len(two) > MAX_COMPARED:
        pairs = zip(one, two, strict=False)
        same = next((at for at, pair in enumerate(pairs) if pair[0] != pair[1]), min(len(one), len(two)))
        yield f"{len(one)} and {len(two)} lines, which differ from line {same + 1} on"
        return
    found = list(difflib.unified_diff(one, two, n=1, lineterm=""))[2:]
    yield from found[:MAX_LINES]
    if len(found) > MAX_LINES:
        yield f"... and {len(found) - MAX_LINES} more lines"


def _spec(side: Side) -> dict[str, Value]:
    """Return the fields that are set, by path; for variables only the names, since a value may be a secret."""
    spec = dict(side.document.get("spec") or {})
    variables = {str(each.get("name")): each for each in spec.pop("env", []) if isinstance(each, Mapping)}
    spec.pop("code", None)  # it has its own section
    return {**dict(_flat(spec, "", 0)), **{f"env.{name}": "is set" for name in variables}}


def _flat(value: Any, path: str, depth: int) -> Iterator[tuple[str, Value]]:
    if isinstance(value, Mapping) and value and depth < MAX_DEPTH:
        for name, item in value.items():
            yield from _flat(item, f"{path}.{name}" if path else str(name), depth + 1)
    elif isinstance(value, str | int | float | bool) or value is None:
        yield path, value
    else:
        yield path, json.dumps(value, sort_keys=True)


def _part(side: Side, name: str) -> Mapping[str, Any]:
    found = (side.record or {}).get(name)
    return found if isinstance(found, Mapping) else {}


def _code(side: Side) -> dict[str, Value]:
    code = _part(side, "code")
    files = code.get("files")
    digests = files if isinstance(files, Mapping) else {}
    sent = side.job.spec.code
    ran = side.job.status.code
    digest = sent.digest if sent is not None and is_sent(sent) else ran.digest if ran is not None else None
    if sent is not None and digest:
        known: dict[str, Value] = {"digest": digest, "commit": pinned_commit(sent) or sent.commit}
        known |= {"branch": sent.branch, "diff": sent.diff, "source": source_of(sent) or None}
        return {**known, **{str(name): _scalar(value) for name, value in digests.items()}}
    return {"commit": _scalar(code.get("commit")), **{str(name): _scalar(value) for name, value in digests.items()}}


def _inputs(side: Side) -> dict[str, Value]:
    return {each.name: each.revision for each in side.job.status.inputs}


def _packages(side: Side) -> dict[str, Value]:
    python = _scalar((side.record or {}).get("python"))
    return {"python": python, **{str(name): _scalar(value) for name, value in _part(side, "packages").items()}}


def _machine(side: Side) -> dict[str, Value]:
    status = side.job.status
    images = {"image": status.images.trainer if status.images is not None else None}
    machine = {str(name): _scalar(value) for name, value in _part(side, "machine").items()}
    return {**images, **machine, "devices": ", ".join(sorted(status.devices)) or None}


def _metrics(side: Side) -> dict[str, Value]:
    status = side.job.status
    return {**status.metrics, **{name: each.value for name, each in status.non_finite_metrics.items()}}


def _result(side: Side) -> dict[str, Value]:
    status = side.job.status
    begun, ended = status.start_time, status.completion_time
    seconds = round(ended - begun) if begun is not None and ended is not None else None
    return {
        "state": str(status.state),
        "step": status.progress.step,
        "seconds": seconds,
        "restarts": status.restarts.total,
        "stepsPerSecond": status.throughput.steps_per_second,
    }


def _scalar(value: Any) -> Value:
    return value if isinstance(value, str | int | float | bool) or value is None else json.dumps(value)[:MAX_SHOWN]


def _lines(found: Comparison) -> Iterator[str]:
    if not found.differences:
        yield f"{found.left} and {found.right} do not differ"
    section = ""
    for each in found.differences:
        if each.section != section:
            section = each.section
            yield f"{section}:"
        if each.lines:
            yield f"  {each.name}:"
            yield from (f"    {clean(line)}" for line in each.lines)
        else:
            yield f"  {clean(each.name)}: {_shown(each.left)} -> {_shown(each.right)}"
    yield from (f"note: {clean(note)}" for note in found.notes)


def _shown(value: Value) -> str:
    if value is None:
        return "(none)"
    if isinstance(value, float):
        return figure(value)
    return clip(clean(str(value).replace("\n", " ")), MAX_SHOWN)
