"""Records by index, each of which can name its place."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torchyard_trainers.core.sampler import order_key

Row = Mapping[str, Any]


class Rows(Protocol):
    """Records that can be read in any order, also in forked processes.

    Attributes:
        fingerprint: identifies the content.
    """

    fingerprint: str

    def __len__(self) -> int:
        """Return the number of records."""

    def row(self, index: int) -> Row:
        """Return a record.

        Raises:
            DataError: it cannot be parsed; the message names file and line.
        """

    def where(self, index: int) -> str:
        """Return the place of a record for messages: `train.jsonl, line 12`."""


class InMemory:
    """Records of a list."""

    def __init__(self, rows: Sequence[Row], name: str = "rows") -> None:
        """Hold `rows`, called `name` in messages."""
        self._rows, self._name = rows, name
        self.fingerprint = f"{order_key(json.dumps([dict(row) for row in rows], sort_keys=True, default=str), 0):016x}"

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, index: int) -> Row:
        """Return a record."""
        return self._rows[index]

    def where(self, index: int) -> str:
        """Return the place of a record for messages."""
        return f"{self._name}, record {index + 1}"


class BadRecordError(ValueError):
    """A record whose field cannot be used; it does not know its place.

    Attributes:
        problem: what is wrong with the field.
    """

    def __init__(self, field: str, problem: str) -> None:
        """Name the field and what is wrong with it: `is missing`."""
        super().__init__(f"field {field!r} {problem}")
        self.problem = problem


class TooLongError(BadRecordError):
    """A record that is longer than a sample may be; nothing else is wrong with it.

    Attributes:
        tokens: of the field.
    """

    def __init__(self, field: str, problem: str, tokens: int) -> None:
        """Name the field, what is wrong with it, and its length."""
        super().__init__(field, problem)
        self.tokens = tokens


def digest_of(*parts: str) -> str:
    """Return a hash that identifies texts in their order."""
    return hashlib.blake2b("/".join(parts).encode(), digest_size=16).hexdigest()


def field_of(row: Row, name: str, kind: type) -> Any:
    """Return a field of a record.

    Raises:
        BadRecordError: it is missing or of another type.
    """
    if name not in row:
        raise BadRecordError(name, f"is missing; the record has {', '.join(map(repr, sorted(row)[:8])) or 'no fields'}")
    if not isinstance(row[name], kind):
        raise BadRecordError(name, f"is {kind_of(row[name])}, expected {_KINDS.get(kind, kind.__name__)}")
    return row[name]


_KINDS = {str: "text", bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "a map"}


def kind_of(value: Any) -> str:
    """Return what a value of a record is, for messages: `null`, `a number`."""
    return "null" if value is None else _KINDS.get(type(value), type(value).__name__)
