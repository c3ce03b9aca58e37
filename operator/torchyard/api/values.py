"""Values that the resource writes as text (durations, times, quantities, parameters), and numbers for people.

Values are decoded once: durations and times are numbers, parameters stay JSON. The patterns of texts are here, too, and
`Model`, the base of every section of the spec.
"""

import json
import math
import re
import time as clocks
from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, Self, cast

import msgspec
from msgspec import Meta, Struct

# Bounded digits keep every duration below what Go and CEL can hold (292 years).
DURATION_PATTERN = r"^([0-9]{1,5}h)?([0-9]{1,7}m)?([0-9]{1,9}s)?$"
DURATION_OR_AUTO_PATTERN = r"^(auto|([0-9]{1,5}h)?([0-9]{1,7}m)?([0-9]{1,9}s)?)$"
_DURATION = re.compile(r"(?:([0-9]{1,5})h)?(?:([0-9]{1,7})m)?(?:([0-9]{1,9})s)?")
_QUANTITY = re.compile(r"([0-9]{1,16}(?:\.[0-9]{1,3})?)(m|[kMGTP]|[KMGTP]i)?")
_POWERS = {"k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


class TableEnum(StrEnum):
    """Texts of the API, each with its properties: a member is made of a Struct whose first field is the text."""

    def __new__(cls, entry: Struct) -> Self:
        """Create a member with the other fields of its entry as attributes."""
        text, *others = entry.__struct_fields__
        member = str.__new__(cls, getattr(entry, text))
        member._value_ = str(member)
        for name in others:
            setattr(member, name, getattr(entry, name))
        return member

    @classmethod
    def unlisted(cls, entry: Struct) -> Self:
        """Return a value of this type that its table does not have: a text of another version."""
        # Enum replaces __new__ of its classes by a look-up.
        member = TableEnum.__dict__["_new_member_"](cls, entry)
        member._name_ = member._value_
        return cast("Self", member)


class Duration(float):
    """A length of time in seconds, which remembers how it was written: `90s`, `5m`, `1h30m`.

    Two spellings of one length are different values, as in the document that they come from.

    Raises:
        ValueError: the text is not a duration; the message shows the form.
    """

    pattern = DURATION_PATTERN
    text: str

    def __new__(cls, text: str) -> Self:
        """Parse the text."""
        duration = super().__new__(cls, cls._seconds(text))
        duration.text = text
        return duration

    @classmethod
    def _seconds(cls, text: str) -> float:
        match = _DURATION.fullmatch(text)
        if not text or match is None:
            raise ValueError(f"{text!r} is not a duration; write it like 90s, 5m or 1h30m")
        hours, minutes, rest = (int(part or 0) for part in match.groups())
        return float(hours * 3600 + minutes * 60 + rest)

    def __str__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, Duration) else float(self) == other

    def __ne__(self, other: object) -> bool:  # that of float compares numbers
        return not self == other

    __hash__ = float.__hash__

    @classmethod
    def default(cls, text: str) -> Any:
        """Declare a field with this default; msgspec cannot describe one that is no plain value."""
        value = cls(text)
        return msgspec.field(default_factory=lambda: value)


class DurationOrAuto(Duration):
    """A duration, or `auto`: infinite, since it sets no limit itself."""

    pattern = DURATION_OR_AUTO_PATTERN

    @classmethod
    def _seconds(cls, text: str) -> float:
        return math.inf if text == "auto" else super()._seconds(text)

    @property
    def auto(self) -> bool:
        """Return whether it is `auto`."""
        return self.text == "auto"


class Time(float):
    """A point in time in unix seconds, written as RFC 3339 in UTC with whole seconds: `2026-11-21T06:30:00Z`."""

    @classmethod
    def of(cls, unix: float) -> Self:
        """Return a time, rounded down to the second: what is written and read again stays the same."""
        return cls(unix // 1)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an RFC 3339 time; fractions and offsets are understood.

        Raises:
            ValueError: the text is not a time with an offset.
        """
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError(f"{text!r} has no time zone; write it like 2026-11-21T06:30:00Z")
        try:
            return cls(moment.astimezone(UTC).timestamp())  # an offset may lead beyond the years 1 to 9999
        except OverflowError as error:
            raise ValueError(f"{text!r} is out of range") from error

    def __str__(self) -> str:
        return rfc3339(self)


def since(time: Time | None, otherwise: float) -> float:
    """Return the time, or `otherwise` if it is absent."""
    return otherwise if time is None else time


@lru_cache(4096)  # a status is read after each write, and its conditions share a few times
def _time(text: str) -> Time:
    return Time.parse(text)


def rfc3339(unix: float) -> str:
    """Return unix seconds as text, rounded down to the second."""
    return _rfc3339(int(unix // 1))


@lru_cache(4096)  # the size of a status is measured in every plan, and its conditions share a few times
def _rfc3339(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def amount(quantity: int | str) -> Decimal:
    """Return the cores or bytes of a quantity: `500m` -> 0.5, `1Ki` -> 1024.

    Raises:
        ValueError: the text is not a quantity; the message shows the form.
    """
    match = _QUANTITY.fullmatch(str(quantity))
    if match is None:
        raise ValueError(f"{quantity!r} is not a quantity; write it like 8, 500m, 16Gi or 64G")
    number, unit = Decimal(match[1]), match[2] or ""
    if unit == "m":
        return number / 1000
    base = 1024 if unit.endswith("i") else 1000
    return number * base ** _POWERS[unit[0]] if unit else number


MAX_BYTES = 64 * 1024
MAX_KEYS, MAX_TEXT, MAX_ITEMS, MAX_DEPTH = 128, 16_384, 1024, 4
"""Limits of one level that a structural schema can express; `MAX_BYTES` of the whole it cannot."""
_ANY = "x-kubernetes-preserve-unknown-fields"


class Params(Mapping[str, Any]):
    """A mapping that is stored as JSON text: decoded, small values take forty times as much memory.

    Raises:
        ValueError: a value has no form in JSON.
        RecursionError: it is nested too deeply.
    """

    __slots__ = ("json",)

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self.json = json.dumps(dict(values or {}), ensure_ascii=False, separators=(",", ":")).encode()

    def decoded(self) -> dict[str, Any]:
        """Return a new dict of the values."""
        found: dict[str, Any] = json.loads(self.json)
        return found

    def __getitem__(self, key: str) -> Any:
        return self.decoded()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.decoded())

    def __len__(self) -> int:
        return len(self.decoded())

    def items(self) -> ItemsView[str, Any]:
        """Return the items, decoded once."""
        return self.decoded().items()

    def values(self) -> ValuesView[Any]:
        """Return the values, decoded once."""
        return self.decoded().values()

    def __bool__(self) -> bool:
        return self.json != b"{}"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Params):
            return self.json == other.json or self.decoded() == other.decoded()
        return isinstance(other, Mapping) and self.decoded() == other

    def __hash__(self) -> int:
        return hash(tuple(sorted(self)))

    def __repr__(self) -> str:
        return f"Params({self.decoded()!r})"


def decode(kind: type, value: Any) -> Any:
    """Convert for msgspec (`dec_hook`)."""
    if kind is Params:
        if isinstance(value, Mapping):
            return Params(value)
        raise ValueError(f"Expected `object`, got `{type(value).__name__}`")
    if not isinstance(value, str):
        raise ValueError(f"Expected `str`, got `{type(value).__name__}`")  # noqa: TRY004 -- what msgspec expects
    if issubclass(kind, Duration):
        return kind(value)
    if kind is Time:
        return _time(value)
    raise NotImplementedError(kind.__name__)


def encode(value: Any) -> Any:
    """Convert for msgspec (`enc_hook`)."""
    if isinstance(value, Time):
        return rfc3339(value)
    if isinstance(value, Duration):
        return value.text
    if isinstance(value, Params):
        return value.decoded()
    raise NotImplementedError(type(value).__name__)


def schema(kind: type) -> dict[str, Any]:
    """Describe for msgspec (`schema_hook`)."""
    if issubclass(kind, Duration):
        return {"type": "string", "pattern": kind.pattern, "minLength": 2, "maxLength": 32}
    if kind is Time:
        return {"type": "string"}
    if kind is Params:
        return {"type": "object", "maxProperties": MAX_KEYS, "additionalProperties": _value(MAX_DEPTH)}
    raise NotImplementedError(kind.__name__)


def _value(depth: int) -> dict[str, Any]:
    """Return the schema of any value with at most `levels` nested lists and mappings."""
    if not depth:
        return {_ANY: True, "nullable": True, "maxLength": MAX_TEXT, "maxItems": 0, "maxProperties": 0}
    below = _value(depth - 1)
    # What null means is the workload's business; the API server would leave it out.
    limits = {"nullable": True, "maxLength": MAX_TEXT, "maxItems": MAX_ITEMS, "maxProperties": MAX_KEYS}
    return {_ANY: True, **limits, "items": below, "additionalProperties": below}


QUANTITY_PATTERN = r"^[0-9]{1,15}(\.[0-9]{1,3})?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
ENV_NAME_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
DNS_LABEL_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
SUBDOMAIN_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_LABEL_KEY = rf"({SUBDOMAIN_PATTERN[1:-1]}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?"
LABEL_KEY_PATTERN = f"^{_LABEL_KEY}$"
CONTROLLER_PATTERN = f"^{SUBDOMAIN_PATTERN[1:-1]}/[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?$"
LABEL_VALUE_PATTERN = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
TAINT_KEY_PATTERN = f"^({_LABEL_KEY})?$"
MODULE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"
# The workloads that come with us, or MODULE:CLASS of a program's own.
BUILT_IN = ("cvrp", "vecrl", "lm", "vla", "vlm")
WITH_TRANSFORMERS = ("lm", "vla", "vlm")  # those that import models of transformers
_CODE = re.compile(rf"{MODULE_PATTERN[1:-1]}:[A-Za-z_][A-Za-z0-9_-]*")
TRAINER_PATTERN = rf"^({'|'.join(BUILT_IN)}|{MODULE_PATTERN[1:-1]}:[A-Za-z_][A-Za-z0-9_]*)$"
TEXT_PATTERN = r"^[^\x00]*$"  # what can be an argument, a variable or a file name
CHECKPOINT_PATTERN = r"^(/[^\x00]*|[a-z0-9]([-a-z0-9]*[a-z0-9])?(/(best|step-[0-9]{8,18}))?)$"
ABSOLUTE_PATH_PATTERN = r"^/[^:\x00]*$"
COMPUTE_CAPABILITY_PATTERN = r"^[0-9]{1,2}\.[0-9]$"

INPUT_PATTERN = (
    r"^(hf://(datasets/)?[A-Za-z0-9][-A-Za-z0-9._]*/[A-Za-z0-9][-A-Za-z0-9._]*@[A-Za-z0-9][-A-Za-z0-9._/]*"
    r"|(s3|gs)://[a-z0-9][-a-z0-9._]+(/[!-~]*)?"
    r"|https://[A-Za-z0-9][-A-Za-z0-9.]*(:[0-9]{1,5})?/[!-~]+"
    r"|claim:[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*(/[!-9;-~]*)?)$"
)
FILES_PATTERN = r"^[!-~]+$"
SHA256_PATTERN = r"^[0-9a-f]{64}$"

# `cpu: 4` and `cpu: "4"` are the same to everybody who writes manifests.
Quantity = (
    Annotated[int, Meta(ge=0, le=2**53)] | Annotated[str, Meta(pattern=QUANTITY_PATTERN, min_length=1, max_length=32)]
)
ObjectName = Annotated[str, Meta(pattern=DNS_LABEL_PATTERN, min_length=1, max_length=63)]
# What the cluster allows as name of a ConfigMap, a Secret, a claim, a service account, a class.
Reference = Annotated[str, Meta(pattern=SUBDOMAIN_PATTERN, min_length=1, max_length=253)]
LabelKey = Annotated[str, Meta(pattern=LABEL_KEY_PATTERN, min_length=1, max_length=253)]
ControllerName = Annotated[str, Meta(pattern=CONTROLLER_PATTERN, min_length=1, max_length=63)]
EnvName = Annotated[str, Meta(pattern=ENV_NAME_PATTERN, min_length=1, max_length=256)]
AbsolutePath = Annotated[str, Meta(pattern=ABSOLUTE_PATH_PATTERN, max_length=1024)]
ComputeCapability = Annotated[str, Meta(pattern=COMPUTE_CAPABILITY_PATTERN, max_length=4)]
LabelValue = Annotated[str, Meta(pattern=LABEL_VALUE_PATTERN, max_length=63)]
AnnotationValue = Annotated[str, Meta(pattern=TEXT_PATTERN, max_length=8192)]
InputSource = Annotated[str, Meta(pattern=INPUT_PATTERN, min_length=1, max_length=1024)]
InputPath = Annotated[str, Meta(pattern=ABSOLUTE_PATH_PATTERN, max_length=256)]
Files = Annotated[str, Meta(pattern=FILES_PATTERN, min_length=1, max_length=128)]
Sha256 = Annotated[str, Meta(pattern=SHA256_PATTERN, max_length=64)]
TaintKey = Annotated[str, Meta(pattern=TAINT_KEY_PATTERN, max_length=253)]
TrainerName = Annotated[str, Meta(pattern=TRAINER_PATTERN, max_length=256)]
Module = Annotated[str, Meta(pattern=MODULE_PATTERN, max_length=256)]
Argument = Annotated[str, Meta(pattern=TEXT_PATTERN, max_length=16384)]

# What the text of a pattern is, and how to write one.
FORMS = {
    DURATION_PATTERN: ("a duration", "write it like 90s, 5m or 1h30m"),
    DURATION_OR_AUTO_PATTERN: ("auto or a duration", "write auto, or it like 90s, 5m or 1h30m"),
    QUANTITY_PATTERN: ("a quantity", "write it like 8, 500m, 16Gi or 64G"),
    ENV_NAME_PATTERN: ("a variable name", "use letters, digits and '_', no digit first"),
    DNS_LABEL_PATTERN: ("a Kubernetes name", "use lower-case letters, digits and '-', no '-' first or last"),
    SUBDOMAIN_PATTERN: (
        "a Kubernetes name",
        "use lower-case letters, digits, '-' and '.', no sign first or last",
    ),
    LABEL_KEY_PATTERN: ("a label key", "write it like topology.kubernetes.io/zone"),
    CONTROLLER_PATTERN: ("the name of a controller", "write it like kueue.x-k8s.io/multikueue"),
    LABEL_VALUE_PATTERN: ("a label value", "use letters, digits, '-', '_' and '.', letters or digits first and last"),
    TAINT_KEY_PATTERN: ("a taint key", "write it like nvidia.com/gpu"),
    INPUT_PATTERN: (
        "the source of an input",
        (
            "write it like hf://ORG/NAME@REVISION, hf://datasets/ORG/NAME@REVISION, s3://BUCKET/PREFIX, "
            "gs://BUCKET/PREFIX, https://HOST/FILE or claim:NAME/FOLDER"
        ),
    ),
    FILES_PATTERN: ("a pattern of file names", "write it like *.safetensors, without spaces"),
    SHA256_PATTERN: ("a SHA-256", "write its 64 hexadecimal digits in lower case, as sha256sum prints them"),
    MODULE_PATTERN: ("a Python module", "write it like package.module"),
    TRAINER_PATTERN: ("a trainer", f"use {', '.join(BUILT_IN)}, or MODULE:CLASS for a workload of your own"),
    TEXT_PATTERN: ("text", "remove that character"),
    CHECKPOINT_PATTERN: (
        "a checkpoint",
        "write a job's name, name/best, name/step-00001200, or an absolute path",
    ),
    ABSOLUTE_PATH_PATTERN: ("an absolute path", "start it with '/', without ':'"),
    COMPUTE_CAPABILITY_PATTERN: ("a compute capability", "write it like 8.0"),
}


class Model(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel", kw_only=True):
    """Base of every spec section: frozen, camelCase on the wire, no unknown fields."""


def doc(text: str) -> Meta:
    """Describe a field; the text reaches `kubectl explain`."""
    return Meta(description=text)


def by_key(*keys: str) -> dict[str, Any]:
    """Mark a list whose items these fields identify: apply merges by them, and they are unique."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


_WITH_TEXT = frozenset({str, list, dict})


def names_code(value: object, depth: int = 2) -> bool:
    """Return whether a parameter is written MODULE:NAME, as code of the user's is, or has a part that is.

    Args:
        value: of the parameter.
        depth: how many lists and maps around a part are looked into, as in `rewards: [{reward: rewards:length}]`.
    """
    if isinstance(value, str):
        return _CODE.fullmatch(value) is not None
    if not depth or not isinstance(value, (dict, list)):
        return False
    parts: Iterable[object] = value.values() if isinstance(value, dict) else value
    # Most parts of a long list are numbers, or empty: no call for each of them.
    return any(names_code(part, depth - 1) for part in parts if part and part.__class__ in _WITH_TEXT)


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: `1 node`, `2 nodes`, `1,024 ranks`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def span(seconds: float) -> str:
    """Return a length of time in at most two units: `45s`, `4m10s`, `3h12m`, `5d4h`."""
    if seconds >= 86400 * 10**6:  # thousands of years, of a forged or damaged status: up to 300 digits
        return f"{seconds / 86400:.3g}d"
    whole = max(0, round(seconds))
    for size, unit, smaller, small_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size}{unit}{rest}{small_unit}" if rest else f"{whole // size}{unit}"
    return f"{whole}s"


def figure(value: float) -> str:
    """Return a number in three or four significant digits, thousands apart; one that is not finite by its name."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    if 1e-3 <= abs(value) < 0.1:
        return f"{value:#.3g}"
    if 0.1 <= abs(value) < 1e6:
        digits = max(0, 4 - len(str(int(abs(value)))))
        return f"{value:,.{digits}f}"
    return f"{value:.3g}"


def size(count: float) -> str:
    """Return bytes in binary units: `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{three_digits(count)} {unit}"
        count /= 1024
    return f"{three_digits(count)} TiB"


def rate(per_second: float, unit: str) -> str:
    """Things a second in two or three digits: `6.9k samples/s`, `0.35 steps/s`."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(per_second) >= factor * 0.9995:
            return f"{three_digits(per_second / factor)}{prefix} {unit}/s"
    return f"{three_digits(per_second)} {unit}/s"


def three_digits(value: float) -> str:
    """Return a number in three significant digits, without trailing zeros: `46.2`, `0.35`, `120`, `1e+30`."""
    if not 1e-6 <= abs(value) < 1e15:  # NaN, too
        return f"{value:.3g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def measure(name: str, value: float) -> str:
    """Return a metric in the unit that its name ends with: `477 MiB` of memoryPeakBytes, `-13.3 %` of gapPercent."""
    if not math.isfinite(value):
        return figure(value)
    if name.endswith("Bytes"):
        return size(value)
    if name.endswith("Percent"):
        return f"{three_digits(value)} %"
    if name.endswith("Share"):
        return f"{three_digits(100 * value)} %"
    if name.endswith("Seconds"):
        return f"{three_digits(value)} s"
    return figure(value)


def clock(unix: float) -> str:
    """Local wall-clock time: `12:00:03`."""
    return clocks.strftime("%H:%M:%S", clocks.localtime(unix))
