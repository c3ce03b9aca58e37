"""Input of Python programs in place of a file: objects as JSON values, and changes of fields."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from torchyard.api.validation.overrides import Override
from torchyard.api.validation.yaml_tree import MAX_BYTES
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
    return [Override.of(path, json_values(value, origin), origin) for path, value, origin in changes]


def json_values(value: Any, what: str) -> Any:
    """Return a value as JSON has it; `what` names it in messages.

    Raises:
        InvalidJobError: it has no form in JSON, or is larger than a job can be.
    """
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        fix = "use dicts, lists, strings, finite numbers, booleans and None"
        raise InvalidJobError(f"{what} cannot be written as JSON: {error}", fix=fix) from error
    if len(text) > MAX_BYTES:
        raise InvalidJobError(f"{what} is larger than 1 MiB", fix="put data into a file that the job can read")
    return json.loads(text)


def shown(value: object) -> str:
    """Return a value of the caller as text for a message."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
