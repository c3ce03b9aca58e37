"""Input of Python programs in place of a file: objects as JSON, changes of fields, and problems without lines."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from torchyard.api.validation.overrides import Override
from torchyard.api.validation.problems import Problem
from torchyard.client.errors import InvalidJobError, TorchYardError


def sets_of(overrides: Mapping[str, Any] | None) -> Sequence[str]:
    """Return `overrides` in the form of `--set` on the command line; messages name `overrides`.

    Raises:
        TorchYardError: it is no dict.
        InvalidJobError: a value cannot be written as JSON.
    """
    if not isinstance(overrides, Mapping | None):  # a caller may have no types
        what = f"overrides: {shown(overrides)} is not a dict"  # type: ignore[unreachable]
        raise TorchYardError(what, "give values by their path in the spec: overrides={'jobTemplate.spec.nodes': 2}")
    changes = [(str(path), value, f"overrides[{str(path)[:100]!r}]") for path, value in (overrides or {}).items()]
    return [Override.of(path, as_json(value, origin), origin) for path, value, origin in changes]


def as_json(value: Any, what: str) -> str:
    """Return a value as JSON; `what` names it in messages.

    Raises:
        InvalidJobError: it has no form in JSON.
    """
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        fix = "use dicts, lists, strings, finite numbers, booleans and None"
        raise InvalidJobError(f"{what} cannot be written as JSON: {error}", fix=fix) from error
    if "\\ud" in text and (found := _not_text(value)) is not None:
        raise InvalidJobError(f"{what}: {found!r} is not UTF-8, and a job holds only text", fix="write it as UTF-8")
    return text


def _not_text(value: Any) -> str | None:
    """Return the first string that has no form in UTF-8: an argument or a path with other bytes."""
    if isinstance(value, str):
        return None if value.isascii() or not any("\ud800" <= each <= "\udfff" for each in value) else value
    parts = (
        [*value, *value.values()] if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    )
    return next((found for part in parts if (found := _not_text(part)) is not None), None)


def without_lines(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Return problems without line numbers, since there is no file."""
    return tuple(msgspec.structs.replace(each, line=0) for each in problems)


def shown(value: object) -> str:
    """Return a value of the caller as text for a message."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
