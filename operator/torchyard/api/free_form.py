"""Free-form parameters: JSON that only a workload understands, bounded in size and depth, kept as bytes."""

import json
from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from typing import Any

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
    if kind is Params and isinstance(value, Mapping):
        return Params(value)
    raise ValueError(f"Expected `object`, got `{type(value).__name__}`")


def encode(value: Any) -> Any:
    """Convert for msgspec (`enc_hook`)."""
    if isinstance(value, Params):
        return value.decoded()
    raise NotImplementedError(type(value).__name__)


def schema(kind: type) -> dict[str, Any]:
    """Describe for msgspec (`schema_hook`)."""
    if kind is not Params:
        raise NotImplementedError(kind.__name__)
    return {"type": "object", "maxProperties": MAX_KEYS, "additionalProperties": _value(MAX_DEPTH)}


def _value(depth: int) -> dict[str, Any]:
    """Return the schema of any value with so many levels of lists and mappings in it."""
    if not depth:
        return {_ANY: True, "nullable": True, "maxLength": MAX_TEXT, "maxItems": 0, "maxProperties": 0}
    below = _value(depth - 1)
    # What null means is the workload's business; the API server would leave it out.
    limits = {"nullable": True, "maxLength": MAX_TEXT, "maxItems": MAX_ITEMS, "maxProperties": MAX_KEYS}
    return {_ANY: True, **limits, "items": below, "additionalProperties": below}
